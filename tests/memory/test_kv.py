"""Bytes of a KV token, by attention, dtype and parallelism."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack.facts import Attention, ModelFacts
from optistack.memory import KV_DTYPES, bytes_per_token, row_bytes

RANKS = st.sampled_from([1, 2, 4, 8])


def test_mla_is_whole_on_every_rank(kimi: ModelFacts) -> None:
    assert {bytes_per_token(kimi, "bfloat16", ranks) for ranks in (1, 2, 4, 8)} == {70_272}


def test_gqa_is_divided_down_to_one_head(kimi_draft: ModelFacts) -> None:
    whole = 2 * 8 * 128 * 2 * 6
    assert [bytes_per_token(kimi_draft, "bfloat16", ranks) for ranks in (1, 2, 4, 8)] == [
        whole,
        whole // 2,
        whole // 4,
        whole // 8,
    ]
    assert bytes_per_token(kimi_draft, "bfloat16", 16) == whole // 8


def test_attention_data_parallelism_gives_a_rank_all_heads_of_its_requests(kimi_draft: ModelFacts) -> None:
    assert bytes_per_token(kimi_draft, "bfloat16", 4, 4) == bytes_per_token(kimi_draft, "bfloat16", 1)
    with pytest.raises(InputError, match="Attention data parallel 3 does not divide tensor parallel 4"):
        bytes_per_token(kimi_draft, "bfloat16", 4, 3)


def test_nvfp4_counts_its_scales() -> None:
    assert row_bytes(128, "nvfp4") == 72
    assert row_bytes(576, "nvfp4") == 324


@pytest.mark.parametrize("dtype", ["auto", "fp8", "int3"])
def test_dtypes_that_say_nothing(dtype: str) -> None:
    with pytest.raises(InputError, match="not a dtype of KV"):
        row_bytes(64, dtype)


@given(values=st.integers(1, 4096), dtype=st.sampled_from(KV_DTYPES))
def test_a_narrower_dtype_is_never_larger(values: int, dtype: str) -> None:
    assert row_bytes(values * 16, "nvfp4") <= row_bytes(values * 16, dtype) <= row_bytes(values * 16, "float32")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kv_heads=st.integers(1, 64), head_dim=st.sampled_from([64, 80, 128]), layers=st.integers(1, 96), ranks=RANKS)
def test_ranks_together_hold_every_head(
    smollm2: ModelFacts, kv_heads: int, head_dim: int, layers: int, ranks: int
) -> None:
    attention = Attention(kind="gqa", heads=64, kv_heads=kv_heads, head_dim=head_dim)
    model = smollm2.model_copy(update={"attention": attention, "layers": layers})
    whole = bytes_per_token(model, "bfloat16")
    part = bytes_per_token(model, "bfloat16", ranks)
    assert whole == 4 * kv_heads * head_dim * layers
    assert part * ranks >= whole
    assert part <= whole
