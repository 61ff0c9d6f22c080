"""What the adapter makes of vLLM's answer, without vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.vllm.rule_cases import DRAFT

from optistack.engines.guest import GuestError
from optistack.errors import InputError
from optistack.facts.model import ModelFacts
from optistack.facts.node import load_node
from optistack.launch import Launch
from optistack.plan.core_rules import CORE_RULES
from optistack.rules import Evidence, Finding, RuleContext, Severity
from optistack.settings import CacheTier, KVLayout, Serving, Speculation
from optistack_adapters.vllm import backend, preflight
from optistack_adapters.vllm.preflight import Outcome, ask
from optistack_adapters.vllm.preflight_changes import alike, changes
from optistack_adapters.vllm.preflight_checkpoints import Asked, Stage
from optistack_adapters.vllm.preflight_rules import EXPLANATIONS, explaining

ACCEPTED: dict[str, Any] = {
    "accepted": True,
    "broken": False,
    "stage": "",
    "error": "",
    "asked": {},
    "resolved": {},
    "settled": {},
    "warnings": (),
    "unresolved": {},
}


def outcome(**parts: Any) -> Outcome:
    return Outcome.model_validate({**ACCEPTED, **parts})


@pytest.mark.parametrize(
    ("asked", "becomes", "same"),
    [
        ("fp8_e4m3", "fp8", True),
        ("fp8_e4m3", "fp8_e5m2", False),
        ("FLASHINFER_MLA", "flashinfer_mla", True),
        ("flashinfer-trtllm", "flashinfer_trtllm", True),
        (64, 64.0, True),
        (100.0, 64, False),
        (True, False, False),
        (["kimi"], "kimi", True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 1}, False),
        (None, None, True),
    ],
)
def test_one_value_in_two_spellings_is_no_change(asked: Any, becomes: Any, same: bool) -> None:
    assert alike(asked, becomes) is same


class TestChanges:
    @pytest.fixture
    def context(self, kimi: ModelFacts, make_context: Callable[..., RuleContext]) -> RuleContext:
        return make_context(
            kimi,
            KVLayout(dtype="fp8_e4m3"),
            Serving(max_running_requests=64, chunked_prefill_tokens=256, cuda_graphs=True),
            CacheTier(level=2, capacity_bytes=2**36),
        )

    def found(self, context: RuleContext, **parts: Any) -> dict[str, tuple[str, str, str]]:
        said = changes(context.launch, context.stack, outcome(**parts))
        return {change.name: (change.asked, change.becomes, change.source) for change in said}

    def test_a_flag_that_vllm_overrides_comes_with_its_setting_and_vllms_own_line(self, context: RuleContext) -> None:
        line = "Disabling prefix caching for this model"
        parts = {"asked": {"enable_prefix_caching": True}, "resolved": {"enable_prefix_caching": False}}
        [change] = changes(context.launch, context.stack, outcome(**parts, warnings=(line,)))
        assert (change.flag, change.setting) == ("--enable-prefix-caching", "serving.prefix_caching")
        assert (change.asked, change.becomes, change.source) == ("true", "false", line)

    def test_a_limit_beside_a_flag_that_makes_it_smaller(self, context: RuleContext) -> None:
        found = self.found(
            context,
            asked={"max_num_seqs": 64},
            resolved={"max_num_seqs": 64},
            settled={"scheduler_config.max_num_active_seqs": 32},
        )
        assert found == {"--max-num-seqs": ("64", "32", "scheduler_config.max_num_active_seqs")}

    def test_what_the_launch_leaves_to_vllm_is_held_against_the_promise(self, context: RuleContext) -> None:
        found = self.found(
            context,
            settled={
                "cache_config.cache_dtype": "auto",
                "attention": "TRITON_MLA",
                "compilation_config.cudagraph_mode": "NONE",
            },
        )
        assert found["kv.dtype"][:2] == ("fp8_e4m3", "auto")
        assert found["serving.attention_backend"][:2] == ("FLASHINFER_MLA", "TRITON_MLA")
        assert found["serving.cuda_graphs"][:2] == ("true", "false")

    def test_a_key_of_a_json_flag(self, context: RuleContext) -> None:
        found = self.found(
            context,
            asked={"kv_transfer_config.kv_connector": "MultiConnector"},
            resolved={"kv_transfer_config.kv_connector": "OffloadingConnector"},
        )
        assert found == {"--kv-transfer-config.kv_connector": ("MultiConnector", "OffloadingConnector", "")}

    def test_what_the_preflight_adds_and_a_name_said_more_exactly_are_no_changes(self, context: RuleContext) -> None:
        parts = {"load_format": "dummy", "quantization": "modelopt"}
        assert self.found(context, asked=parts, resolved={"load_format": "auto", "quantization": "modelopt_fp4"}) == {}


class TestStage:
    def launch(self, make_context: Callable[..., RuleContext], model: ModelFacts, draft: str) -> Launch:
        wish = Speculation(method="dflash", draft_checkpoint=draft, num_draft_tokens=7)
        launch: Launch = make_context(model, wish).launch
        return launch

    def speculation(self, argv: list[str]) -> dict[str, Any]:
        parts: dict[str, Any] = json.loads(argv[argv.index("--speculative-config") + 1])
        return parts

    def test_a_model_that_is_elsewhere_becomes_a_folder_with_its_config(
        self, kimi: ModelFacts, make_context: Callable[..., RuleContext], tmp_path: Path
    ) -> None:
        stage = Stage(kimi, self.launch(make_context, kimi, DRAFT), tmp_path)
        argv = stage.argv()
        folder = Path(argv[argv.index("--model") + 1])
        config = json.loads((folder / "config.json").read_text())
        assert folder.is_relative_to(tmp_path) and str(folder).endswith("org/kimi")
        assert config["architectures"] == kimi.config["architectures"] and "auto_map" not in config
        assert (folder / "hf_quant_config.json").exists()
        assert stage.real(f"no kernels for {folder}") == "no kernels for org/kimi"
        assert argv[-2:] == ["--load-format", "dummy"] and not stage.has_tokenizer

    def test_a_model_that_is_here_is_used_as_it_is(
        self, small: ModelFacts, make_context: Callable[..., RuleContext], tmp_path: Path
    ) -> None:
        stage = Stage(small, self.launch(make_context, small, DRAFT), tmp_path)
        argv = stage.argv()
        assert argv[argv.index("--model") + 1] == str(small.path)
        assert self.speculation(argv)["model"] == DRAFT
        assert list(tmp_path.iterdir()) == []

    def test_the_draft_comes_from_the_config_that_its_plugin_was_given(
        self, kimi: ModelFacts, make_context: Callable[..., RuleContext], tmp_path: Path
    ) -> None:
        launch = self.launch(make_context, kimi, "z-lab/Kimi-DFlash")
        stage = Stage(kimi, launch, tmp_path, [{"draft": "z-lab/Kimi-DFlash", "draft_config": DRAFT}])
        parts = self.speculation(stage.argv())
        assert parts["model"].endswith("z-lab/Kimi-DFlash") and Path(parts["model"], "config.json").exists()
        assert (parts["method"], stage.unresolved) == ("dflash", [])

    def test_without_one_speculation_is_left_out_and_said_so(
        self, kimi: ModelFacts, make_context: Callable[..., RuleContext], tmp_path: Path
    ) -> None:
        stage = Stage(kimi, self.launch(make_context, kimi, "z-lab/Kimi-DFlash"), tmp_path)
        assert "--speculative-config" not in stage.argv()
        assert "z-lab/Kimi-DFlash is not on this machine" in stage.unresolved[0]


def test_a_refusal_is_explained_by_the_rules_that_fired() -> None:
    def finding(rule: str) -> Finding:
        return Finding(
            rule=rule,
            severity=Severity.ERROR,
            message="",
            fix="",
            upstream="",
            evidence=Evidence.READ,
            domain=None,
            source="vllm",
        )

    words = (
        "Selected backend FLASHMLA is not valid. Reason: ['block_size not supported', 'kv_cache_dtype not supported']"
    )
    fired = [finding("vllm-mla-kernel-page"), finding("vllm-heads")]
    assert explaining(words, fired) == ("vllm-mla-kernel-page",)
    assert explaining("something else", fired) == ()


@pytest.mark.parametrize(
    ("error", "said", "fix"),
    [
        (GuestError("ModuleNotFoundError", "No module named 'msgspec'", "msgspec"), "'msgspec'", "pip install msgspec"),
        (GuestError("Crash", "it was killed"), "it was killed", "Mend that environment"),
    ],
)
def test_a_broken_environment_is_told_by_its_module(
    monkeypatch: pytest.MonkeyPatch, error: GuestError, said: str, fix: str
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(preflight, "run_inside", fail)
    with pytest.raises(InputError) as caught:
        ask(Path("/engine/bin/python"), [Asked(argv=("--model", "m"))], node=load_node("b200x4"))
    assert said in str(caught.value) and fix in caught.value.fix


def test_no_gpu_is_looked_at_and_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def answer(python: Path, task: str, arguments: dict[str, Any], **options: Any) -> Any:
        seen.update(arguments, env=options["env"], launches=json.loads(Path(arguments["launches"]).read_text()))
        parts = {"version": "0.32.0", "platform": "cuda", "device": "NVIDIA B200", "stand_ins": (), "seconds": 1.0}
        return {**parts, "outcomes": [ACCEPTED]}

    monkeypatch.setattr(preflight, "run_inside", answer)
    launch = Asked(argv=("--model", "m"), env={"CUDA_VISIBLE_DEVICES": "0,1,2,3", "PYTHONHASHSEED": "0"})
    ask(Path("/engine/bin/python"), [launch], node=load_node("b200x4"))
    assert seen["env"]["CUDA_VISIBLE_DEVICES"] == "" and not Path(seen["env"]["VLLM_CACHE_ROOT"]).exists()
    assert seen["launches"][0]["env"] == {"PYTHONHASHSEED": "0"}
    assert (seen["gpu"]["sm"], seen["gpu"]["gpus"], seen["gpu"]["name"]) == (100, 4, "NVIDIA B200")


def test_explanations_name_rules_that_there_are() -> None:
    rules = {rule.id for rule in (*CORE_RULES, *backend.rules())}
    assert {rule for _, named in EXPLANATIONS for rule in named} <= rules
