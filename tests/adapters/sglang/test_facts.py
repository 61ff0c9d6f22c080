"""What plugins may reckon with, and what the adapter suggests."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from optistack.errors import InputError
from optistack.facts import load_node
from optistack_adapters.sglang import backend, kernels, versions


def test_the_adapter_introduces_itself() -> None:
    assert backend.name == "sglang"
    assert SpecifierSet(backend.supported).contains(backend.default_version)
    assert not SpecifierSet(backend.supported).contains("0.5.16")


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
def test_captured_states_are_packed_in_place(version: str) -> None:
    assert backend.facts(version, "cuda").trait("aux_hidden_state_copies") == 1


def test_a_cpu_has_less() -> None:
    cpu, gpu = backend.facts("0.5.23", "cpu"), backend.facts("0.5.23", "cuda")
    assert cpu.traits.keys() == gpu.traits.keys()
    assert not cpu.trait("host_tier")
    assert cpu.trait("speculation_methods") == ()
    assert cpu.trait("storage_backends") == ()
    assert "nvfp4" not in cpu.trait("weight_formats")
    assert "nvfp4" not in cpu.trait("kv_dtypes")
    assert "fp8_e4m3" in cpu.trait("kv_dtypes")


@pytest.mark.parametrize(
    ("feature", "version", "there"),
    [
        ("draft-kv-dtype", "0.5.17", False),
        ("draft-kv-dtype", "0.5.18.post1", True),
        ("attention-data-flag", "0.5.21", False),
        ("attention-data-flag", "0.5.22rc1", True),
    ],
)
def test_features_by_version(feature: str, version: str, there: bool) -> None:
    assert versions.has(feature, version) is there


@pytest.mark.parametrize(
    ("backends", "node", "pages"),
    [
        (("trtllm_mla",), "b200x1", (32, 64)),
        (("trtllm_mla", "flashmla"), "b200x1", (64,)),
        (("triton", None), "b200x1", ()),
        (("fa4",), "b200x1", (128,)),
        (("fa4",), "h200x1", ()),
    ],
)
def test_page_sizes_that_kernels_take(
    llama: Any, backends: tuple[str | None, ...], node: str, pages: tuple[int, ...]
) -> None:
    assert kernels.allowed_pages(backends, llama, load_node(node)) == pages


@pytest.mark.parametrize(
    ("target", "node", "draft"),
    [
        ("trtllm_mla", "b200x1", "flashinfer"),
        ("fa4", "b200x1", "fa4"),
        ("fa3", "h200x1", "fa3"),
        ("flashmla", "h200x1", "fa3"),
        (None, "b200x1", "flashinfer"),
    ],
)
def test_kernels_of_a_draft(target: str | None, node: str, draft: str) -> None:
    assert kernels.draft_backend(target, load_node(node)) == draft


def test_uneven_attention_groups_are_refused(build: Any) -> None:
    with pytest.raises(InputError, match="does not divide tensor parallel"):
        build(node="b200x8", parallel={"tensor": 8, "attention_data": 3})
