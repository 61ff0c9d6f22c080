"""Each rule firing and not firing."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.facts import load_node
from optistack.launch import LaunchArgument
from optistack.plugin import Domain
from optistack.rules import Severity
from optistack.settings import Serving, choose
from optistack.stack.spec import ParallelSection, WorkloadSection


def test_a_shorter_block_is_degraded(bench: Any) -> None:
    assert "dflash-shorter-block" not in bench.findings()
    finding = bench.findings(num_draft_tokens=3)["dflash-shorter-block"]
    assert finding.severity is Severity.DEGRADED
    assert "3 of 7 tokens" in finding.message


def test_a_step_is_priced_at_the_workloads_concurrency(bench: Any) -> None:
    bench.workload = WorkloadSection(concurrency=5)
    assert "5 x 8 = 40 tokens" in bench.findings()["dflash-step-cost"].message


@pytest.mark.parametrize("flag", ["--speculative-use-block-verification", "--speculative-adaptive"])
def test_flags_that_change_nothing(bench: Any, flag: str) -> None:
    rule = "dflash-sglang-no-effect"
    assert rule not in bench.findings()
    arguments = (LaunchArgument(flag=flag, source="stack"),)
    assert flag in bench.findings(arguments=arguments)[rule].message
    bench.backend = "vllm"
    assert rule not in bench.findings(arguments=arguments)


def test_refused_request_fields_are_named_for_each_engine(bench: Any) -> None:
    assert "dflash-sglang-hidden-states" in bench.findings()
    assert "dflash-vllm-sampling-parameters" not in bench.findings()
    bench.backend = "vllm"
    assert "dflash-sglang-hidden-states" not in bench.findings()
    assert "min_p" in bench.findings()["dflash-vllm-sampling-parameters"].message


class TestVllmOnCpu:
    """vLLM without a GPU has only its V1 runner."""

    @pytest.fixture
    def cpu(self, make_bench: Any) -> Any:
        return make_bench(backend="vllm", version="0.32.0", device="cpu", node=load_node("cpu"))

    def test_a_plain_draft_is_welcome(self, cpu: Any) -> None:
        assert "dflash-vllm-cpu-runner" not in cpu.findings()

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (
                {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 512},
                "mixes windowed and full",
            ),
            ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel"),
        ],
    )
    def test_other_drafts_are_refused_or_dropped(self, cpu: Any, change: dict[str, Any], what: str) -> None:
        cpu.draft.update(change)
        finding = cpu.findings()["dflash-vllm-cpu-runner"]
        assert (finding.severity, finding.domain) == (Severity.ERROR, Domain.SPECULATION)
        assert what in finding.message

    def test_all_layers_of_the_draft_get_the_first_ones_norm(self, cpu: Any, make_bench: Any) -> None:
        rule = "dflash-vllm-cpu-context-norm"
        assert "has 2 layers" in cpu.findings()[rule].message
        assert rule not in make_bench(backend="vllm").findings()
        cpu.draft["num_hidden_layers"] = 1
        assert rule not in cpu.findings()

    def test_a_gpu_takes_them(self, make_bench: Any) -> None:
        bench = make_bench(backend="vllm")
        bench.draft["architectures"] = ["DFlash2DraftModel"]
        assert "dflash-vllm-cpu-runner" not in bench.findings()

    def test_a_draft_that_is_elsewhere_is_not_judged(self, cpu: Any) -> None:
        config = cpu.write("elsewhere", {**cpu.draft, "architectures": ["DFlash2DraftModel"]}) / "config.json"
        assert "dflash-vllm-cpu-runner" not in cpu.findings(draft="some/draft", draft_config=str(config))


@pytest.mark.parametrize(("version", "fires"), [("0.26.0", True), ("0.32.0", False)])
def test_a_draft_in_fp8_needs_a_vllm_that_reads_it(make_bench: Any, version: str, fires: bool) -> None:
    rule = "dflash-vllm-fp8-draft"
    bench = make_bench(backend="vllm", version=version)
    assert rule not in bench.findings()
    bench.draft["quantization_config"] = {"quant_method": "fp8", "modules_to_not_convert": ["fc"]}
    assert (rule in bench.findings()) is fires


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
        bench.parallel = ParallelSection(tensor=2, attention_data=2)
        assert self.RULE not in bench.findings(), "a group of up to seven requests admits at once"
        bench.workload = WorkloadSection(concurrency=2 * concurrency)
        bench.others = [Serving(max_running_requests=choose(2 * running))]
        assert (self.RULE in bench.findings()) is fires, "each of two groups has slots of its own"

    def test_the_flag_answers_it(self, bench: Any) -> None:
        bench.others = [Serving(max_running_requests=choose(10))]
        bench.workload = WorkloadSection(concurrency=10)
        flag = LaunchArgument(flag="--min-free-slots-delay", value="1", source="stack")
        assert self.RULE not in bench.findings(arguments=(flag,))


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
