"""What the plugin asks for: dtypes, scales, and the attention kernels that may read them."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.errors import InputError, PlanRefusedError
from optistack.settings import KVLayout, Serving, Speculation, choose, suggest
from optistack.settings.resolved import Contribution, combine


def test_the_target_is_fp8_and_the_reason_counts_bytes(world: Any) -> None:
    dtype = world.resolve().kv.dtype
    assert (dtype.value, dtype.default) == ("fp8_e4m3", False)
    assert dtype.origins[0].why == "35,136 bytes a token on each GPU instead of 70,272 in BF16"


def test_a_draft_keeps_bf16_unless_the_user_or_another_plugin_says_otherwise(world: Any) -> None:
    assert (world.resolve().kv.draft_dtype.value, world.resolve().kv.draft_dtype.default) == ("bfloat16", True)
    assert world.asking(draft_dtype="same").resolve().kv.draft_dtype.value == "fp8_e4m3"
    assert world.asking(dtype="fp8_e5m2", draft_dtype="same").resolve().kv.draft_dtype.value == "fp8_e5m2"
    assert not world.asking(draft_dtype="bfloat16").resolve().kv.draft_dtype.default
    other = Contribution("drafter", KVLayout(draft_dtype=choose("fp8_e4m3")))
    assert combine([Contribution("kv-fp8", _wish(world)), other]).kv.draft_dtype.value == "fp8_e4m3"


def _wish(world: Any) -> KVLayout:
    return KVLayout(draft_dtype=suggest(world.resolve().kv.draft_dtype.value))


@pytest.mark.parametrize(
    ("kv_scales", "claims", "asked", "scales"),
    [
        (True, True, "auto", "checkpoint"),
        (True, False, "auto", "checkpoint"),
        (False, True, "auto", "unit"),  # the metadata asks for FP8 KV and the weights have no scale for it
        (False, False, "auto", "unit"),
        (None, True, "auto", "checkpoint"),
        (None, False, "auto", "unit"),
        (True, True, "checkpoint", "checkpoint"),
        (True, True, "unit", "unit"),
        (False, False, "unit", "unit"),
    ],
)
def test_scales_come_from_where_there_are_some(
    world: Any, kv_scales: bool | None, claims: bool, asked: str, scales: str
) -> None:
    quantization = world.model.quantization if claims else None
    plan = world.having(kv_scales=kv_scales, quantization=quantization).asking(scales=asked)
    assert plan.resolve().kv.scales.value == scales
    assert plan.resolve().kv.scales.origins[0].why


def test_scales_that_the_checkpoint_does_not_have_are_refused(world: Any) -> None:
    with pytest.raises(PlanRefusedError, match="has no KV scales"):
        world.having(kv_scales=False).asking(scales="checkpoint").resolve()


def test_a_scales_file_takes_the_place_of_scales(world: Any) -> None:
    kv = world.asking(scales_file="/models/scales.json").resolve().kv
    assert (kv.scales.value, kv.scales_file.value) == ("file", "/models/scales.json")


def test_an_unknown_option_or_word_is_refused(world: Any) -> None:
    with pytest.raises(InputError, match="no option 'dtpye'.*'dtype'"):
        world.asking(dtpye="fp8_e4m3").resolve()
    with pytest.raises(InputError, match="fp8_e4m3"):
        world.asking(dtype="fp8").resolve()


def allowed(world: Any) -> tuple[str, ...]:
    return tuple(world.resolve().serving.attention_backend.one_of)


def test_mla_kernels_that_read_fp8_are_the_only_ones_allowed(world: Any) -> None:
    assert "trtllm_mla" in allowed(world)
    assert "fa3" in allowed(world.on("h200x8"))
    assert "trtllm_mla" not in allowed(world.on("h200x8"))
    assert "trtllm_mla" not in allowed(world.asking(dtype="fp8_e5m2"))
    vllm = world.by("vllm")
    assert {"FLASHINFER_MLA", "TOKENSPEED_MLA"} <= set(allowed(vllm))
    assert "FLASHMLA" not in allowed(vllm)
    assert "FLASH_ATTN_MLA" not in allowed(vllm)
    assert set(allowed(vllm.on("h200x8"))) == {"FLASHMLA", "TRITON_MLA"}
    assert allowed(vllm.on("b200x4", sm=120)) == ("TRITON_MLA",)
    assert allowed(vllm.asking(dtype="fp8_e5m2")) == ()  # there is none: the rule refuses


def test_e5m2_gets_the_kernels_that_read_it_on_sglang(world: Any) -> None:
    backend = world.asking(dtype="fp8_e5m2").resolve().serving.attention_backend
    assert (backend.value, backend.default) == ("triton", True)
    with pytest.raises(PlanRefusedError, match="trtllm_mla is not .*triton"):
        world.asking(dtype="fp8_e5m2").attending("trtllm_mla").resolve()


def test_cutlass_mla_is_allowed_only_with_unit_scales(world: Any) -> None:
    vllm = world.by("vllm")
    assert "CUTLASS_MLA" not in allowed(vllm.having(kv_scales=True))
    assert "CUTLASS_MLA" in allowed(vllm.having(kv_scales=False))


def test_kernels_for_other_models(world: Any, small: Any) -> None:
    vllm = world.by("vllm").of(small).spread(tensor=1)
    assert set(allowed(vllm)) == {"FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"}
    assert set(allowed(vllm.on("h200x1"))) == {"FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"}
    assert set(allowed(vllm.on("h200x1", sm=80))) == {"FLASHINFER", "TRITON_ATTN"}
    assert set(allowed(vllm.asking(dtype="fp8_e5m2"))) == {"FLASHINFER", "TRITON_ATTN"}
    assert allowed(world.of(small).spread(tensor=1)) == ()
    assert allowed(world.of(small).on_cpu("vllm")) == ()


def test_sparse_attention_models_keep_their_own_kernels(world: Any) -> None:
    config = {**world.model.config, "index_topk": 2048}
    assert allowed(world.having(config=config)) == ()
    assert allowed(world.by("vllm").having(config=config)) == ()


def test_a_kernel_that_cannot_read_fp8_is_refused_naming_both_sides(world: Any) -> None:
    with pytest.raises(PlanRefusedError, match="FLASH_ATTN_MLA.*kv-fp8 says one of.*other says FLASH_ATTN_MLA"):
        world.by("vllm").on("h200x8").attending("FLASH_ATTN_MLA").resolve()
    stack = world.by("vllm").beside(Serving(attention_backend=suggest("FLASHINFER_MLA"))).resolve()
    assert stack.serving.attention_backend.value == "FLASHINFER_MLA"


def test_the_plugin_speaks_of_nothing_else(world: Any) -> None:
    paths = {path for path, _ in world.beside(Speculation(method="eagle3")).resolve().values()}
    assert paths == {"kv.dtype", "kv.draft_dtype", "kv.scales", "serving.attention_backend", "speculation.method"}
