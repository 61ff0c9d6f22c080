"""Adapters for other people's evaluations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from optistack.errors import InputError
from optistack_conformance.adapters import k2vv, lm_eval
from optistack_conformance.client import Client
from optistack_conformance.evals.items import load_items
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.outcomes import Outcome
from optistack_conformance.selection import PROFILES
from optistack_conformance.tiers.contract.chats import TOOL, TOOL_MESSAGES

SAMPLE = {"messages": [{"role": "_input", "content": "Be brief."}, *TOOL_MESSAGES], "tools": [TOOL]}
SAMPLE |= {"tool_choice": "required", "max_tokens": 100, "temperature": 0.0}


def answers(*finish: str, valid: bool = True) -> list[dict[str, Any]]:
    return [
        {"data_index": index, "status": "success", "finish_reason": reason, "tool_calls_valid": valid}
        for index, reason in enumerate(finish, start=1)
    ]


def test_samples_are_run_and_written_in_the_verifiers_own_format() -> None:
    with FaultyServer() as server, Client(server.url) as client:
        results = k2vv.run_samples(client, [SAMPLE, SAMPLE], concurrency=2)
    assert [result["data_index"] for result in results] == [1, 2]
    assert {result["finish_reason"] for result in results} == {"tool_calls"}
    assert all(result["tool_calls_valid"] for result in results)
    assert results[0]["request"]["messages"][0]["role"] == "system"


def test_truncated_arguments_are_no_valid_call() -> None:
    with FaultyServer(Fault.TRUNCATED_ARGUMENTS) as server, Client(server.url) as client:
        (result,) = k2vv.run_samples(client, [SAMPLE], concurrency=1)
    assert result["tool_calls_valid"] is False


def test_f1_is_that_of_triggered_calls() -> None:
    reference = answers("tool_calls", "tool_calls", "stop", "stop")
    figures = k2vv.compare(reference, answers("tool_calls", "stop", "tool_calls", "stop"))
    assert (figures.precision, figures.recall, figures.f1) == (0.5, 0.5, 0.5)
    assert k2vv.compare(reference, reference).f1 == 1.0


def test_threshold_comes_from_reruns_of_the_reference() -> None:
    first = answers("tool_calls", "tool_calls", "stop", "stop")
    rerun = answers("tool_calls", "tool_calls", "tool_calls", "stop")
    assert k2vv.f1_threshold([first, first, first, rerun]) == pytest.approx(0.8 - 0.2)
    with pytest.raises(InputError, match="do not make a threshold"):
        k2vv.f1_threshold([first, first])


def test_judgement_needs_both_figures() -> None:
    many = answers(*["tool_calls"] * 200)
    assert k2vv.judge(k2vv.compare(many, many), 0.9) is Outcome.PASS
    assert k2vv.judge(k2vv.compare(many, answers(*["tool_calls"] * 200, valid=False)), 0.9) is Outcome.FAIL
    assert k2vv.judge(k2vv.compare(many, answers(*["stop"] * 200)), 0.9) is Outcome.FAIL, "it calls no tool any more"
    none = answers(*["stop"] * 200)
    assert k2vv.judge(k2vv.compare(none, none), 0.0) is Outcome.INCONCLUSIVE


def test_samples_that_are_not_answered_are_no_pass() -> None:
    many = answers(*["tool_calls"] * 200)
    refused = [{**entry, "status": "failed", "finish_reason": None} for entry in many[100:]]
    figures = k2vv.compare(many, [*many[:100], *refused])
    assert (figures.compared, figures.failed, figures.f1) == (100, 100, 1.0)
    assert k2vv.judge(figures, 0.9) is Outcome.INCONCLUSIVE
    assert k2vv.judge(k2vv.compare(many, many[:100]), 0.9) is Outcome.PASS, "of some of the samples, each answered"


def test_a_broken_samples_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"messages": []}\n{oops\n')
    with pytest.raises(InputError, match="line 2 is no JSON"):
        k2vv.read_lines(path)


def test_a_sample_may_hold_what_ends_a_line_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"text": "one\u2028line"}\n{"text": "one\u0085line"}\n', encoding="utf-8")
    assert [line["text"] for line in k2vv.read_lines(path)] == ["one\u2028line", "one\u0085line"]


def test_items_become_a_task_of_the_harness_with_local_data(tmp_path: Path) -> None:
    task = lm_eval.export_task(load_items(PROFILES["quick"]), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / f"{task}.jsonl").read_text().splitlines()]
    assert {line["id"].split("/")[0] for line in lines} == {"copying", "structured", "tools"}
    words = lm_eval.command("python", "http://h:1/", "m", [task], tmp_path / "out", include=tmp_path, concurrency=2)
    assert "model=m,base_url=http://h:1/v1/completions,num_concurrent=2" in " ".join(words)


def test_results_of_the_harness_are_read_by_document(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "results_2026-01-01T00-00-00.json").write_text(
        json.dumps({"results": {"t": {"alias": "t", "exact_match,none": 0.5}}})
    )
    (folder / "samples_t_2026-01-01T00-00-00.jsonl").write_text(
        '{"doc_id": 0, "doc": {"id": "a", "text": "one\u2028line"}, "metrics": ["exact_match"], "exact_match": 1.0}\n'
        '{"doc_id": 1, "doc": {}, "metrics": ["exact_match"], "exact_match": 0.0}\n'
    )
    (found,) = lm_eval.read(tmp_path)
    assert found.metrics == {"exact_match,none": 0.5}
    assert found.passed == {"a": True, "1": False}


def test_a_python_without_the_harness_is_said() -> None:
    with pytest.raises(InputError, match="has no lm_eval"):
        lm_eval.check_python(sys.executable)
