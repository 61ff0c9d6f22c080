"""Traits, suggestions and reserves of the vLLM adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from optistack.facts.model import ModelFacts
from optistack.facts.node import GIB, load_node
from optistack.settings import Serving, Speculation
from optistack_adapters.vllm import backend
from optistack_adapters.vllm.memory import memory_fraction
from optistack_adapters.vllm.reserves import activation_bytes, graph_bytes

Make = Callable[..., Any]


def test_the_default_version_is_supported() -> None:
    assert SpecifierSet(backend.supported).contains(backend.default_version)


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0", "0.33.0"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_version_gathers_hidden_states_and_then_concatenates_them(version: str, device: str) -> None:
    facts = backend.facts(version, device)
    assert facts.trait("aux_hidden_state_copies") == 2
    assert "dflash" in facts.trait("speculation_methods")


def test_a_cpu_has_no_host_tier_and_no_nvfp4() -> None:
    facts = backend.facts("0.32.0", "cpu")
    assert facts.trait("host_tier") is False
    assert facts.trait("storage_backends") == ()
    assert "nvfp4" not in facts.trait("weight_formats")
    assert "nvfp4" not in facts.trait("kv_dtypes")
    assert "fp8_e4m3" in facts.trait("kv_dtypes")


def test_what_came_and_went_with_a_version() -> None:
    old, new = backend.facts("0.26.0", "cuda"), backend.facts("0.33.0", "cuda")
    assert "medusa" in old.trait("speculation_methods") and "medusa" not in new.trait("speculation_methods")
    assert (old.trait("host_kv_copies"), new.trait("host_kv_copies")) == ("rank", "shared")
    assert backend.facts("0.33.0rc1", "cuda").trait("host_kv_copies") == "shared"


def test_the_suggested_prefill_pass_is_the_trait(kimi: ModelFacts, small: ModelFacts, make_request: Make) -> None:
    for request in (make_request(kimi), make_request(small, node="cpu")):
        said = request.stack.serving.chunked_prefill_tokens.value
        assert said == request.engine.trait("default_prefill_tokens")


@pytest.mark.parametrize(
    ("node", "page", "kernel"),
    [("b200x4", 64, "FLASHINFER_MLA"), ("b300x4", 64, "FLASHINFER_MLA"), ("h200x8", 64, None), ("cpu", 16, None)],
)
def test_pages_and_kernels_for_mla(
    node: str, page: int, kernel: str | None, kimi: ModelFacts, make_request: Make
) -> None:
    stack = make_request(kimi, node=node).stack
    assert stack.kv.page_size_tokens.value == page
    assert stack.serving.attention_backend.value == kernel


@pytest.mark.parametrize(("node", "page"), [("h200x1", 16), ("cpu", 128)])
def test_pages_for_other_attention(node: str, page: int, small: ModelFacts, make_request: Make) -> None:
    assert make_request(small, node=node).stack.kv.page_size_tokens.value == page


def test_batch_limits_are_always_said(kimi: ModelFacts, make_request: Make) -> None:
    stack = make_request(kimi, spec={"workload": {"concurrency": 7}}).stack
    assert stack.serving.max_running_requests.value == 14
    assert stack.serving.max_running_requests.default


def test_activations_are_near_what_was_measured(kimi: ModelFacts, make_request: Make) -> None:
    """Kimi's widths on one H200, vLLM 0.26, BF16, eager: 4.60 GiB beside weights and KV (0.92 x 139.80 GiB in all).

    Layers and experts do not enter, so the whole model stands for the 20-layer slice that was measured.
    """
    request = make_request(
        kimi.model_copy(update={"multimodal": False}),
        Serving(max_running_requests=64, chunked_prefill_tokens=8192),
        node="h200x1",
    )
    assert activation_bytes(request.stack, request.model, request.spec, "0.33.0") / GIB == pytest.approx(4.60, rel=0.05)


def test_more_ranks_and_smaller_passes_take_less(kimi: ModelFacts, make_request: Make) -> None:
    def size(tokens: int, node: str) -> int:
        request = make_request(kimi, Serving(chunked_prefill_tokens=tokens), node=node)
        return activation_bytes(request.stack, request.model, request.spec, "0.33.0")

    assert size(8192, "b200x8") < size(8192, "b200x4") < size(16384, "b200x4")


def test_an_attention_group_has_its_part_of_the_requests(kimi: ModelFacts, make_request: Make) -> None:
    """Logits and graphs are of one engine's --max-num-seqs; the experts' tokens are of all engines."""

    def sizes(requests: int, **parallel: int) -> tuple[int, int]:
        request = make_request(
            kimi, Serving(max_running_requests=requests), node="b200x8", spec={"parallel": {"tensor": 8, **parallel}}
        )
        parts = request.stack, request.model
        return (
            activation_bytes(*parts, request.spec, "0.33.0"),
            graph_bytes(*parts, request.node, request.engine, request.spec),
        )

    logits, graphs = (large - small for large, small in zip(sizes(64), sizes(16), strict=True))
    of_group = [
        large - small for large, small in zip(sizes(64, attention_data=4), sizes(16, attention_data=4), strict=True)
    ]
    assert of_group[0] == logits // 4
    assert of_group[1] == pytest.approx(graphs / 4, rel=0.1)


def test_whole_experts_have_whole_rows_for_every_token_that_groups_gather(kimi: ModelFacts, make_request: Make) -> None:
    """Triton's workspace has a row for each expert of a token, wherever that expert is (triton_moe.py)."""

    def size(**parallel: int) -> int:
        request = make_request(
            kimi, Serving(chunked_prefill_tokens=8192), node="b200x8", spec={"parallel": {"tensor": 8, **parallel}}
        )
        return activation_bytes(request.stack, request.model, request.spec, "0.33.0")

    rows = 8 * 8192 * 2 * (2048 - 2048 // 8)
    assert size(expert=8) - size() == rows
    assert size(expert=8, attention_data=4) - size(attention_data=4) == 4 * rows
    gathered = 2 * 4 * 8192 * 7168 * 2
    assert size(attention_data=4) - size() > 3 * 8 * 8192 * 2 * (7168 + 256) + gathered


def test_how_weights_lie(kimi: ModelFacts, make_request: Make) -> None:
    def taken(model: ModelFacts, *settings: Any, **options: Any) -> Any:
        request = make_request(model, *settings, **options)
        return backend.reserves(request.stack, model, request.node, request.engine, request.spec)

    plain = taken(kimi)
    assert plain.vision_divided and plain.vision_loaded and not plain.mtp_loaded
    assert not plain.absorbed_mla_copies, "Kimi's attention is BF16"
    attention = kimi.parts("attention")[0].model_copy(update={"precision": "fp8"})
    assert taken(kimi.model_copy(update={"components": (attention,)})).absorbed_mla_copies
    assert not taken(kimi, spec={"engine_args": ["--language-model-only"]}).vision_loaded
    assert taken(kimi, Speculation(method="mtp", num_draft_tokens=1)).mtp_loaded


def test_graphs_grow_with_what_is_captured_and_vanish_when_eager(kimi: ModelFacts, make_request: Make) -> None:
    def size(*settings: Any) -> int:
        request = make_request(kimi, *settings)
        return graph_bytes(request.stack, request.model, request.node, request.engine, request.spec)

    drafting = Speculation(method="dflash", draft_checkpoint="d", num_draft_tokens=7)
    assert size(Serving(cuda_graphs=False)) == 0
    assert 0 < size(Serving(max_running_requests=4)) < size(Serving(max_running_requests=4), drafting)
    assert size(Serving(max_running_requests=1024)) == size(Serving(max_running_requests=4096))


def test_the_fraction_asks_for_no_more_than_is_free(kimi: ModelFacts, make_request: Make) -> None:
    request = make_request(kimi)
    node = load_node("b200x4")
    taken = backend.reserves(request.stack, kimi, node, request.engine, request.spec)
    assert node.gpu is not None and node.gpu.cuda_bytes is not None
    fraction = memory_fraction(node, taken)
    assert fraction * node.gpu.cuda_bytes <= node.gpu.cuda_bytes - taken.context_bytes - taken.collectives_bytes
    planned = request.budget.taken_bytes + request.budget.kv_bytes
    assert planned <= node.hbm_bytes


def test_a_cpu_rank_keeps_room_for_its_worker(small: ModelFacts, make_request: Make) -> None:
    """Measured with SmolLM2: 1.80 GB of which 0.27 weights and 0.54 KV; server and scheduler 1.41 GB."""
    request = make_request(small, node="cpu", spec={"serving": {"kv_memory_gib": 0.5}})
    taken = backend.reserves(request.stack, small, request.node, request.engine, request.spec)
    assert taken.context_bytes + taken.activations_bytes >= (1.80 - 0.27 - 0.54) * 1e9
    assert taken.host_bytes >= 1.41e9
    assert taken.graphs_bytes == taken.collectives_bytes == 0
