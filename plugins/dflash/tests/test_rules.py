"""Each rule firing and not firing."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.facts import load_node
from optistack.launch import LaunchArgument
from optistack.rules import Severity
from optistack.settings import KVLayout, Serving, choose, suggest
from optistack.stack.spec import ParallelSection, WorkloadSection


def test_a_shorter_block_is_degraded(bench: Any) -> None:
    assert "dflash-shorter-block" not in bench.findings()
    finding = bench.findings(num_draft_tokens=3)["dflash-shorter-block"]
    assert finding.severity is Severity.DEGRADED
    assert "3 of 7 tokens" in finding.message


def test_a_step_is_priced_at_the_workloads_concurrency(bench: Any) -> None:
    bench.workload = WorkloadSection(concurrency=5)
    assert "5 x 8 = 40 tokens" in bench.findings()["dflash-step-cost"].message


@pytest.mark.parametrize("flag", ["--speculative-use-rejection-sampling", "--speculative-adaptive"])
def test_sglangs_ignored_sampling_flags(bench: Any, flag: str) -> None:
    rule = "dflash-sglang-sampling-flags"
    assert rule not in bench.findings()
    assert flag in bench.findings(arguments=(LaunchArgument(flag=flag, source="x"),))[rule].message
    bench.engine_args = (f"{flag}=true",)
    assert bench.findings()[rule].severity is Severity.SILENT
    bench.backend = "vllm"
    assert rule not in bench.findings()


def test_block_verification_has_no_effect(bench: Any) -> None:
    rule = "dflash-sglang-block-verification"
    assert rule not in bench.findings()
    bench.engine_args = ("--speculative-use-block-verification",)
    assert rule in bench.findings()


def test_refused_request_fields_are_named_for_each_engine(bench: Any) -> None:
    assert "dflash-sglang-hidden-states" in bench.findings()
    assert "dflash-vllm-sampling-parameters" not in bench.findings()
    bench.backend = "vllm"
    assert "dflash-sglang-hidden-states" not in bench.findings()
    assert "min_p" in bench.findings()["dflash-vllm-sampling-parameters"].message


class TestFp8DraftKv:
    RULE = "dflash-vllm-fp8-draft-kv"

    def test_it_is_degraded_on_blackwell(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm", others=[KVLayout(draft_dtype=choose("fp8_e4m3"))])
        assert bench.findings()[self.RULE].severity is Severity.DEGRADED

    def test_a_draft_that_follows_the_target_is_meant_too(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm", others=[KVLayout(dtype=choose("fp8_e4m3"))])
        assert self.RULE in bench.findings()

    def test_a_bfloat16_draft_beside_fp8_is_fine(self, make_bench: Any) -> None:
        layout = KVLayout(dtype=choose("fp8_e4m3"), draft_dtype=choose("bfloat16"))
        assert self.RULE not in make_bench(backend="vllm", others=[layout]).findings()

    def test_hopper_is_fine(self, make_bench: Any) -> None:
        layout = KVLayout(dtype=choose("fp8_e4m3"))
        assert self.RULE not in make_bench(backend="vllm", others=[layout], node=load_node("h200x4")).findings()


def test_quantizing_the_draft_is_degraded(bench: Any) -> None:
    assert "dflash-quantized-draft" not in bench.findings(draft_quantization="none")
    assert "fp8" in bench.findings(draft_quantization="fp8")["dflash-quantized-draft"].message


@pytest.mark.parametrize(("ignored", "fires"), [(["lm_head"], False), ([], True)])
def test_a_quantized_head_is_degraded(bench: Any, ignored: list[str], fires: bool) -> None:
    bench.target["quantization_config"] = {"quant_method": "fp8", "modules_to_not_convert": ignored}
    assert ("dflash-quantized-head" in bench.findings()) is fires


class TestAdmissionDelay:
    """SGLang keeps 2 of 10 slots free before it admits a prompt, so the tenth request waits."""

    RULE = "dflash-sglang-admission-delay"

    def test_the_suggested_number_of_requests_leaves_room(self, bench: Any) -> None:
        for concurrency in (1, 5, 40):
            bench.workload = WorkloadSection(concurrency=concurrency)
            assert self.RULE not in bench.findings()

    @pytest.mark.parametrize(("running", "concurrency", "fires"), [(10, 9, False), (10, 10, True), (7, 7, False)])
    def test_it_fires_where_the_last_requests_would_wait(
        self, bench: Any, running: int, concurrency: int, fires: bool
    ) -> None:
        bench.workload = WorkloadSection(concurrency=concurrency)
        bench.others = [Serving(max_running_requests=choose(running))]
        assert (self.RULE in bench.findings()) is fires

    def test_the_flag_answers_it(self, bench: Any) -> None:
        bench.others = [Serving(max_running_requests=choose(10))]
        bench.workload = WorkloadSection(concurrency=10)
        bench.engine_args = ("--min-free-slots-delay", "1")
        assert self.RULE not in bench.findings()


def test_data_parallel_attention_needs_the_split_head(bench: Any) -> None:
    rule = "dflash-sglang-attention-data"
    assert rule not in bench.findings()
    bench.parallel = ParallelSection(tensor=4, attention_data=4)
    assert bench.findings()[rule].severity is Severity.ERROR
    bench.engine_args = ("--enable-dp-lm-head",)
    assert rule not in bench.findings()


@pytest.mark.parametrize(
    ("version", "running", "fires"), [("0.26.0", 1000, True), ("0.26.0", 10, False), ("0.32.0", 1000, False)]
)
def test_draft_slots_eat_vllms_prefill_budget(make_bench: Any, version: str, running: int, fires: bool) -> None:
    serving = Serving(max_running_requests=choose(running), chunked_prefill_tokens=suggest(8192))
    bench = make_bench(backend="vllm", version=version, others=[serving])
    assert ("dflash-vllm-prefill-budget" in bench.findings()) is fires


@pytest.mark.parametrize(("version", "fires"), [("0.26.0", True), ("0.32.0", True), ("0.33.0", False)])
def test_the_last_cached_block_is_lost_before_0_33(make_bench: Any, version: str, fires: bool) -> None:
    bench = make_bench(backend="vllm", version=version)
    assert ("dflash-vllm-last-block" in bench.findings()) is fires
    bench.others = [Serving(prefix_caching=choose(False))]
    assert "dflash-vllm-last-block" not in bench.findings()


def test_the_reported_collapse_is_noted_for_several_gpus(make_bench: Any) -> None:
    rule = "dflash-vllm-acceptance-with-prefix-cache"
    bench = make_bench(backend="vllm")
    assert rule not in bench.findings()
    bench.parallel = ParallelSection(tensor=4)
    assert bench.findings()[rule].severity is Severity.NOTE


def test_ids_are_unique_and_every_rule_says_what_to_do(bench: Any) -> None:
    import optistack_dflash

    rules = optistack_dflash.optistack_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    assert all(rule.id.startswith("dflash-") and rule.fix and rule.upstream for rule in rules)
