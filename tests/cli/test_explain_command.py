"""``optistack explain`` tells what a word of a plan means and why it is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from optistack.explain import Known, explain, setting_paths

Optistack = Callable[..., Any]

KIMI = ("--stack", Path(__file__).resolve().parents[2] / "stacks/kimi-k2.6-b200x4.yaml", "--backend", "sglang")


def test_a_rule_without_any_stack(optistack: Optistack) -> None:
    ran = optistack("explain", "kv-pool-below-concurrency")
    assert ran.code == 0, ran.err
    assert "degraded" in ran.out
    assert "workload.concurrency" in ran.out


def test_a_flag_of_a_stack_with_the_setting_it_carries(optistack: Optistack) -> None:
    facts = dict(optistack("explain", "--kv-cache-dtype", *KIMI, "--json").json["facts"])
    assert facts["set by"].startswith("kv-fp8")
    assert facts["carries"] == "kv.dtype"
    assert "35,136 bytes" in facts["because"]


def test_a_setting_with_who_said_what(optistack: Optistack) -> None:
    ran = optistack("explain", "serving.context_tokens", *KIMI)
    assert "in this plan" in ran.out
    assert "262144" in ran.out
    assert "--context-length" in ran.out


def test_an_option_of_a_plugin(optistack: Optistack) -> None:
    facts = dict(optistack("explain", "dflash.num_draft_tokens", "--json").json["facts"])
    assert "bonus token" in facts["means"]


def test_what_is_not_there(optistack: Optistack) -> None:
    assert "Did you mean 'kv.dtype'?" in optistack("explain", "kv.dtpye").err
    assert "--stack FILE" in optistack("explain", "--page-size").err
    assert optistack("explain", "--page-siz", *KIMI).code == 2


def test_every_setting_has_a_meaning_to_tell() -> None:
    facts = {path: dict(explain(path, Known(rules=(), plugins=())).facts) for path in setting_paths()}
    assert [path for path, told in facts.items() if not told.get("means")] == []


def test_what_a_setting_takes_is_said_in_words_of_python() -> None:
    facts = {path: dict(explain(path, Known(rules=(), plugins=())).facts) for path in setting_paths()}
    assert facts["kv.page_size_tokens"]["takes"] == "int"
    assert [path for path, told in facts.items() if "Annotated" in told["takes"]] == []


def test_a_rule_about_damaged_files_reads_whole_without_a_plan(optistack: Optistack) -> None:
    assert "…" not in optistack("explain", "hicache-storage-damage").out


def test_an_engine(optistack: Optistack) -> None:
    facts = dict(optistack("explain", "vllm", "--json").json["facts"])
    assert facts["supported"].startswith(">=")
    assert "0.33.0" in facts["flags known of"]
    assert "installed here" in facts


def test_a_key_of_the_stack_file_that_no_plugin_sets(optistack: Optistack) -> None:
    assert dict(optistack("explain", "serving.port", "--json").json["facts"])["means"].startswith("Port")
    assert "tensor" in dict(optistack("explain", "parallel", "--json").json["facts"])["keys"]


def test_only_what_is_near_is_suggested(optistack: Optistack) -> None:
    assert "Did you mean" not in optistack("explain", "server.address").err


def test_every_setting_says_what_it_takes() -> None:
    taken = {path: dict(explain(path, Known(rules=(), plugins=())).facts)["takes"] for path in setting_paths()}
    assert (taken["routing.policy"], taken["routing.precise"]) == ("str", "bool")
    assert taken["routing.parameters"] == "dict[str, Any]"
    assert all(taken.values())


def test_a_setting_of_a_stack_names_the_plugin_that_sets_it(optistack: Optistack) -> None:
    facts = dict(optistack("explain", "routing.policy", *KIMI, "--json").json["facts"])
    assert "routing" in facts


def test_a_plugin_with_its_options_rules_and_receipt_lines(optistack: Optistack) -> None:
    facts = dict(optistack("explain", "kv-fp8", "--json").json["facts"])
    assert facts["domain"] == "kv"
    assert "kv-fp8.draft_dtype" in facts["options"]
    assert "kv-fp8-unit-scales" in facts["rules"]
    assert facts["receipt lines"] == "kv-fp8/bytes-per-token"


def test_a_line_of_a_receipt(optistack: Optistack) -> None:
    told = optistack("explain", "dflash/drafts-move", "--json").json
    assert told["kind"] == "receipt line"
    assert "the engine drafted" in dict(told["facts"])["passes when"]
    assert "within 2%" in optistack("explain", "budget.kv_tokens").out
    assert "within 2% and 0.5 GiB" in optistack("explain", "budget.weight_bytes").out
    assert "'dflash/drafts-move'" in optistack("explain", "dflash/drafts-moved").err
