"""What loading the weights took of a GPU: from the log, where there is none from the endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.facts.node import GIB

LINE = "budget.weight_bytes"
NO_DRAFT = {"speculative_algorithm": None, "speculative_draft_model_path": None}

SLICE = (
    "[2026-11-30 10:06:52] server_args=ServerArgs(model_path='m')\n"
    "[2026-11-30 10:07:06] Init torch distributed ends. elapsed=0.02 s, mem usage=0.09 GB\n"
    "[2026-11-30 10:07:07] Load weight begin. avail mem=137.81 GB\n"
    "[2026-11-30 10:07:07] Load weight end. elapsed=0.21 s, type=DeepseekV3ForCausalLM, avail mem=77.04 GB, "
    "mem usage=60.77 GB.\n"
    "[2026-11-30 10:07:42] Capture target decode CUDA graph end. elapsed=33.21 s, mem usage=-1.15 GB.\n"
)
"""An H200, 0.5.17: a DeepSeek-V3 shape in BF16; planned are 60.64 GiB, the copies of an MLA model with them."""

DRAFTED = (
    "[2026-11-30 10:01:51] Load weight end. elapsed=0.22 s, type=LlamaForCausalLM, avail mem=137.86 GB, "
    "mem usage=0.27 GB.\n"
    "[2026-11-30 10:01:52] Load weight end. elapsed=0.02 s, type=DFlashDraftModel, avail mem=137.83 GB, "
    "mem usage=0.03 GB.\n"
)


def test_the_log_says_it(engine: Any) -> None:
    seen = engine.observe(engine.but(**NO_DRAFT), log=SLICE)[LINE]
    assert (seen.value, seen.whole_device) == (round(60.77 * GIB), True)
    assert seen.proof.startswith("log: Load weight end. ")
    assert seen.proof.endswith("mem usage=60.77 GB.")


def test_a_drafts_line_counts_with_the_targets(engine: Any) -> None:
    seen = engine.observe(log=DRAFTED)[LINE]
    assert seen.value == round(0.3 * GIB)
    assert "type=LlamaForCausalLM" in seen.proof
    assert "type=DFlashDraftModel" in seen.proof


def test_of_several_ranks_the_one_that_took_most_counts(engine: Any) -> None:
    """Every rank has two lines: they are added for one rank and never over ranks."""
    other = engine.log.replace("mem usage=141.20", "mem usage=139.99", 3)
    assert engine.values(log=other)[LINE] == engine.values()[LINE] == round((141.2 + 2.1) * GIB)


def test_only_the_last_start_in_a_log_counts(engine: Any) -> None:
    first = SLICE.replace("60.77", "61.99")
    assert engine.values(engine.but(**NO_DRAFT), log=first + SLICE)[LINE] == round(60.77 * GIB)


METRICS = """\
# TYPE sglang:weight_memory_usage_gb gauge
sglang:weight_memory_usage_gb{tp_rank="0"} 140.5
sglang:weight_memory_usage_gb{tp_rank="1"} 140.75
"""


def test_without_a_log_the_endpoints_say_it_of_an_engine_without_a_draft(engine: Any) -> None:
    seen = engine.observe(engine.but(**NO_DRAFT), log=None)[LINE]
    assert seen.value == round(141.2 * GIB)
    assert seen.proof == "/server_info internal_states[].memory_usage.weight=141.2"
    metric = engine.observe(engine.but(**NO_DRAFT, internal_states=[]), log=None, metrics=METRICS)[LINE]
    assert metric.value == round(140.75 * GIB)
    assert metric.proof == "/metrics sglang:weight_memory_usage_gb 140.75"


@pytest.mark.parametrize("log", [None, SLICE])
def test_a_figure_of_the_target_alone_proves_nothing_where_there_is_a_draft(engine: Any, log: str | None) -> None:
    seen = engine.observe(log=log)[LINE]
    assert seen.value is None
    assert seen.proof.endswith("memory_usage.weight=141.2 is the target's alone; the log would say the draft's")


def test_an_engine_that_says_nothing(engine: Any) -> None:
    """A start whose weights come after the graphs writes another line, without a size."""
    late = "[2026-11-30 10:07:07] Load weight end. Committed real weights after CUDA graph capture in 3.10 s (...)\n"
    for states in ([], [{"memory_usage": {"weight": 0}}], [{"memory_usage": {"weight": "much"}}], ["x"]):
        seen = engine.observe(engine.but(internal_states=states), log=late, metrics=None)[LINE]
        assert seen.value is None
        assert "neither the log nor /server_info" in seen.proof


def test_on_a_cpu_the_figure_is_no_evidence(engine: Any) -> None:
    assert LINE not in engine.observe(engine.but(**NO_DRAFT, device="cpu"), log=SLICE)
