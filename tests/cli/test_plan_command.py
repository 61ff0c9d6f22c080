"""``optistack plan`` shows everything that will be done, and starts nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optistack.plan.plan import Plan

Optistack = Callable[..., Any]

STACKS = Path(__file__).resolve().parents[2] / "stacks"
KIMI = ("--stack", STACKS / "kimi-k2.6-b200x4.yaml", "--backend", "sglang")


def test_every_setting_and_every_flag_is_one_line_with_who_and_why(optistack: Optistack) -> None:
    ran = optistack("plan", *KIMI)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    setting = next(line for line in lines if line.strip().startswith("kv.dtype "))
    flag = next(line for line in lines if "--kv-cache-dtype" in line)
    for line in (setting, flag):
        assert "fp8_e4m3" in line
        assert "kv-fp8" in line
        assert "35,136 bytes a token" in line
    assert not any(line != line.rstrip() for line in lines)
    plan = Plan.model_validate_json(optistack("plan", *KIMI, "--json").out)
    for argument in plan.launches[0].arguments:
        assert any(argument.flag in line and argument.source in line for line in lines), argument.flag
    for finding in plan.findings:
        assert any(finding.rule in line and finding.fix in line for line in lines), finding.rule
    for line in plan.budget.lines:
        assert any(text.strip().startswith(line.label) for text in lines), line.label
    assert f"{plan.budget.kv_tokens:,} tokens" in ran.out


def test_in_a_terminal_it_fits_a_hundred_columns(optistack: Optistack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    import re

    ran = optistack("plan", *KIMI)
    assert "\x1b[" in ran.out
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in ran.out.splitlines()]
    assert max(map(len, lines)) <= 100


def test_a_refused_plan_is_shown_with_the_reason_last_and_code_2(optistack: Optistack) -> None:
    ran = optistack("plan", *KIMI, "--set", "parallel.tensor=2")
    assert ran.code == 2
    assert "--tp-size 2" in ran.out
    assert "GiB too much" in ran.out
    assert ran.err.startswith("Error: The stack does not fit: ")


def test_a_refused_plan_is_not_locked(optistack: Optistack, home: Path) -> None:
    assert optistack("plan", *KIMI, "--set", "parallel.tensor=2", "--lock", "a.json").code == 2
    assert not (home / "a.json").exists()


@pytest.mark.parametrize("name", ["a.json", "kimi.lock", "b"])
def test_lock_and_diff(optistack: Optistack, home: Path, name: str) -> None:
    assert optistack("plan", *KIMI, "--lock", name).code == 0
    same = optistack("plan", *KIMI, "--diff", name)
    assert "The plans are equal." in same.out
    other = optistack("plan", *KIMI, "--no-plugin", "kv-fp8", "--diff", name, "--json").json
    assert {"part": "plugin", "name": "kv-fp8"}.items() <= next(d for d in other if d["part"] == "plugin").items()
    shown = optistack("plan", *KIMI, "--diff", STACKS / "kimi-k2.6-b300x4.yaml").out
    assert "node" in shown
    assert "b300x4 → b200x4" in shown


def test_the_other_stack_takes_the_backend_that_the_first_one_names(optistack: Optistack, home: Path) -> None:
    other = STACKS / "kimi-k2.6-b300x4.yaml"
    assert "\nbackend:" not in other.read_text()
    named = (STACKS / "kimi-k2.6-b200x4.yaml").read_text().replace("models/", f"{STACKS}/models/")
    (home / "optistack.yaml").write_text(f"backend: vllm\n{named}")
    ran = optistack("plan", "--diff", other)
    assert ran.code == 0, ran.err
    assert "b300x4 → b200x4" in ran.out


def test_the_script_is_shell(optistack: Optistack, home: Path) -> None:
    printed = optistack("plan", *KIMI, "--script", "-")
    assert printed.out.startswith("#!/bin/sh\n")
    assert optistack("plan", *KIMI, "--script", "launch.sh").code == 0
    assert (home / "launch.sh").read_text() == printed.out
    subprocess.run(["sh", "-n", str(home / "launch.sh")], check=True)


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        (["--backend", "vlm"], "No backend is called 'vlm'.", "'vllm'"),
        (["--node", "b20x4"], "There is no node called 'b20x4'.", "'b200x4'"),
        (["-p", "kv-fp9"], "-p kv-fp9: no plugin is called 'kv-fp9'.", "'kv-fp8'"),
        (["--set", "dflash.num_draft_token=1"], "plugin dflash has no option 'num_draft_token'", "'num_draft_tokens'"),
        (["--engine-version", "0.1.0"], "0.1.0", ""),
        (["--engine-python", "/nowhere/python"], "/nowhere/python", ""),
        (["--diff", "no.yaml"], "There is no stack file no.yaml.", ""),
        (["--diff", "no.json"], "There is no lock file no.json.", ""),
        (["--lock", "/nowhere/a.json"], "/nowhere/a.json cannot be written", ""),
        (["--lock", "-"], "--lock - names no file.", "--json"),
        (["--lock", "."], ". is a folder.", "Name a file in it."),
        (["--set", "serving.kv_memory_gib=500"], "The stack does not fit", "Lower serving.kv_memory_gib"),
        (["--set", "serving.kv_memory_gib=0.1"], "The stack does not fit", "Raise serving.kv_memory_gib"),
    ],
)
def test_wrong_input_is_a_sentence_with_code_2(
    optistack: Optistack, arguments: list[str], message: str, fix: str
) -> None:
    ran = optistack("plan", *KIMI, *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert fix in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_without_a_backend_it_says_which_there_are(optistack: Optistack) -> None:
    ran = optistack("plan", *KIMI[:2])
    assert ran.code == 2
    assert "sglang, vllm" in ran.err


def test_size_shows_gross_and_planned_and_why_not(optistack: Optistack) -> None:
    ran = optistack("size", *KIMI, "--hbm-gb", "180")
    assert ran.code == 0, ran.err
    assert "short by" in ran.out
    assert "TP8: It needs 8 GPUs, and b200x4 has 4." in ran.out
    rows = {row["tensor_parallel"]: row for row in optistack("size", *KIMI, "--hbm-gb", "180", "--json").json["rows"]}
    assert rows[1]["gross"]["shortfall_bytes"] > rows[2]["gross"]["shortfall_bytes"] > 0
    assert rows[4]["reason"] == ""
    assert optistack("size", *KIMI, "--node", "cpu").code == 2
    for wrong in ("-1", "nan", "inf", "1e300"):
        ran = optistack("size", *KIMI, "--hbm-gb", wrong)
        assert ran.code == 2
        assert f"--hbm-gb {float(wrong):g} is no size of a GPU." in ran.err


def test_a_secret_is_shown_nowhere_and_started_with(optistack: Optistack, home: Path) -> None:
    given = (*KIMI, "--engine-arg=--api-key=s3cret")
    for more in ([], ["--json"], ["--diff", STACKS / "kimi-k2.6-b200x4.yaml"]):
        ran = optistack("plan", *given, *more)
        assert "s3cret" not in ran.out + ran.err
        assert ("***" in ran.out) is (more[:1] != ["--diff"])  # both plans have the same
    ran = optistack("plan", *given, "--script", "launch.sh", "--lock", "plan.lock")
    assert "only you can read it" in ran.err
    for name in ("launch.sh", "plan.lock"):
        assert "s3cret" in Path(name).read_text()
        assert Path(name).stat().st_mode & 0o077 == 0
    assert "s3cret" in optistack("plan", *given, "--script", "-").out


def test_a_script_and_json_do_not_share_stdout(optistack: Optistack) -> None:
    ran = optistack("plan", *KIMI, "--json", "--script", "-")
    assert ran.code == 2
    assert set(ran.json) == {"error", "fix"}


def test_a_name_that_is_too_long_for_a_folder_is_refused(optistack: Optistack) -> None:
    ran = optistack("plan", *KIMI, "--set", f"name={'x' * 65}")
    assert ran.code == 2
    assert "name must be text of at most 64 characters" in ran.err


def test_a_config_that_does_not_say_how_long_a_context_may_be(optistack: Optistack, small: Any, home: Path) -> None:
    config = json.loads((home / "model/config.json").read_text())
    del config["max_position_embeddings"]
    (home / "model/config.json").write_text(json.dumps(config))
    ran = optistack("plan", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["stack"]["serving"]["context_tokens"]["value"] == 80


def test_heads_that_do_not_divide_are_the_layouts_fault_and_no_plugins(optistack: Optistack) -> None:
    stack = Path(__file__).resolve().parents[2] / "stacks/kimi-k2.6-b200x4.yaml"
    ran = optistack("plan", "--backend", "vllm", "--stack", stack, "--set", "parallel.tensor=3")
    assert ran.code == 2
    assert "parallel.tensor is 3, and the 64 attention heads" in ran.err
    assert "1, 2, 4, 8" in ran.err


def test_what_goes_to_the_engine_by_hand_is_said(optistack: Optistack) -> None:
    stack = Path(__file__).resolve().parents[2] / "stacks/kimi-k2.6-b200x4.yaml"
    quiet = optistack("plan", "--backend", "vllm", "--stack", stack, "--json").json["findings"]
    words = ("--engine-arg", "--seed=3", "--engine-arg", "--enforce-eager")
    told = optistack("plan", "--backend", "vllm", "--stack", stack, *words, "--json").json["findings"]
    assert "engine-args-by-hand" not in {finding["rule"] for finding in quiet}
    assert next(f["message"] for f in told if f["rule"] == "engine-args-by-hand").endswith("--seed, --enforce-eager.")


@pytest.mark.parametrize("option", ["--lock", "--script"])
def test_a_file_that_cannot_be_written_is_the_one_thing_said(optistack: Optistack, option: str, home: Path) -> None:
    ran = optistack("plan", *KIMI, option, home / "nowhere" / "file", "--json")
    assert ran.code == 2
    assert "cannot be written" in ran.json["error"]


def test_a_stack_file_that_may_not_be_read_is_a_matter_of_permission(
    optistack: Optistack, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    (home / "optistack.yaml").write_text("")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may read everything
    ran = optistack("plan", "--stack", home / "optistack.yaml")
    assert ran.code == 2
    assert "is not readable" in ran.err
    assert "right to read it (chmod)" in ran.err
