"""``optistack conformance k2vv`` and ``lm-eval``, as programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.conformance.test_adapters import SAMPLE

from optistack.cli.run import run
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.server import FaultyServer

HARNESS = """#!/bin/sh
# Stands in for a Python that has lm_eval: finds the documents of $WRONG wrong.
[ "$1" = -c ] && echo lm_eval && exit 0
while [ $# -gt 0 ]; do
  case "$1" in --output_path) out="$2";; --tasks) task="$2";; esac
  shift
done
mkdir -p "$out/m"
echo "{\\"results\\": {\\"$task\\": {\\"exact_match,none\\": 0.5}}}" > "$out/m/results_2026.json"
for id in $(seq 40); do
  right=1.0; case "$out" in *candidate) [ "$id" -le "${WRONG:-0}" ] && right=0.0;; esac
  echo "{\\"doc_id\\": $id, \\"doc\\": {}, \\"metrics\\": [\\"exact_match\\"], \\"exact_match\\": $right}"
done > "$out/m/samples_${task}_2026.jsonl"
"""


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(SAMPLE) + "\n" for _ in range(12)))
    return path


def test_k2vv_is_judged_by_reruns_of_the_reference(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    references = [tmp_path / f"reference-{number}.jsonl" for number in range(4)]
    words = ["conformance", "k2vv", "--samples", str(samples)]
    with FaultyServer() as server:
        for path in references:
            assert run([*words, "--endpoint", server.url, "--out", str(path)]) == 0
        given = [word for path in references for word in ("--reference", str(path))]
        assert run([*words, "--endpoint", server.url, "--out", str(tmp_path / "good.jsonl"), *given]) == 0
    capsys.readouterr()
    with FaultyServer(Fault.TRUNCATED_ARGUMENTS) as server:
        bad = ["--out", str(tmp_path / "bad.jsonl"), *given, "--json"]
        assert run([*words, "--endpoint", server.url, *bad]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["f1"], found["schema_accuracy"], found["verdict"]) == (1.0, 0.0, "fail")
    assert run(["conformance", "k2vv", *bad]) == 1, "results that are there already are judged as they are"


def test_k2vv_needs_a_threshold_from_four_runs(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["conformance", "k2vv", "--out", "x", "--samples", str(samples)]) == 2
    assert "Give both --endpoint and --samples" in capsys.readouterr().err
    results = tmp_path / "results.jsonl"
    results.write_text('{"data_index": 1, "status": "success", "finish_reason": "stop"}\n')
    assert run(["conformance", "k2vv", "--out", "x", "--reference", str(results)]) == 2
    assert "do not make a threshold" in capsys.readouterr().err


def test_a_line_that_is_no_sample_is_named_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text("[1]\n")
    assert run(["conformance", "k2vv", "--out", str(results)]) == 2
    said = capsys.readouterr().err
    assert f"{results} line 1 is no object." in said and "Fix: Every line should be one JSON object" in said


@pytest.mark.parametrize(("wrong", "code"), [(0, 0), (12, 1)])
def test_lm_eval_is_judged_by_documents_against_the_baseline(
    wrong: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text(HARNESS)
    python.chmod(0o755)
    monkeypatch.setenv("WRONG", str(wrong))
    words = ["conformance", "lm-eval", "--python", str(python), "--output", str(tmp_path / "out"), "--json"]
    with FaultyServer() as server:
        assert run([*words, "--endpoint", server.url, "--baseline", server.url]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["optistack_evals_v2"]["lost"] == wrong
    assert found["verdict"] == ("fail" if code else "pass")


def test_lm_eval_says_what_it_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["conformance", "lm-eval", "--endpoint", "http://127.0.0.1:1", "--python", "/nowhere/python"]
    assert run([*words, "--lossy", "int2"]) == 2
    assert "One of fp8-kv, nvfp4" in capsys.readouterr().err
    assert run(words) == 2
    assert "No engine answers" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing is written before the servers answer"


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        (sys.executable, "has no lm_eval. Fix: Install it there"),
        ("/bin/true", "/bin/true has no lm_eval. Fix: Install it there"),
        ("/nowhere/python", "/nowhere/python does not run: No such file or directory."),
    ],
)
def test_a_wrong_python_for_lm_eval_is_told_and_leaves_nothing(
    python: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with FaultyServer() as server:
        assert run(["conformance", "lm-eval", "--endpoint", server.url, "--python", python]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
