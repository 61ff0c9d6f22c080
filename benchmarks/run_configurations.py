"""Start a list of configurations one after the other: the plan held against the engine, and the benchmark on each.

    python benchmarks/run_configurations.py benchmarks/configurations/plan-on-cpu.yaml --out DIR [--plan-only]
        [--engine-python BACKEND=PATH] [--engine-version V] [--only NAME] [--seconds N] [--lock FILE] [--starting FILE]
        [--rows FILE]

A file of configurations has a `title`, what it `needs`, `common` fields, and `configurations`: each has a name, a stack
(relative to the file), a backend, and, where wanted, `without` and `plugins` (left out and added), `set`,
`engine_args`, `env`, and the words of `apply`, `bench` and `conformance` beside those that the runner gives. `checks`
are further command lines, by name, run from the repository's root on the running engine; {url}, {out}, {name} and
{stack} are filled in, {engines} as the `--engine URL` of each replica behind a router, and what they print is kept as
DIR/NAME.CHECK.json. optistack fills in `${MODELS}` and other variables. Each gets a row in DIR/rows.json (`--rows`) as
soon as it is done: what the list asked (a row stands when its list is changed), KV tokens planned and reported, steps a
second that the memory's bandwidth allows, the benchmark's figures, tokens/s/user measured over what the bandwidth
allows, and where an engine refuses, what it said. `--plan-only` plans and starts nothing; `--seconds` begins no
configuration later than that. Lists that share a GPU are given the same `--lock` file: their engines may run together
and one may start while another is measured, but only one is measured at a time. A list of two locks takes both together
and holds none while it waits. With the same `--starting` file no engine starts while a configuration that is `quiet` is
measured, and it is measured when none is starting. Told to end (SIGTERM, Ctrl-C), it tells what is running to end,
writes the row with what was measured by then and `ended`, and begins no other: exit code 130. It is 1 when a
configuration failed or missed the plan by more than 2%.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from bandwidth import bandwidth_steps_s, speed
from commands import check, optistack
from locks import alone, held

from optistack.apply.termination import termination_raises

KV_TOLERANCE = 0.02
INCONCLUSIVE = 4
MEMORY = re.compile(r"GiB|GB|KV cache|max_total_num_tokens|scales?\b", re.IGNORECASE)


def stack_words(one: dict[str, Any], folder: Path, pythons: dict[str, str]) -> list[str]:
    words = ["--stack", str(folder / one["stack"]), "--backend", one["backend"], "--set", f"name={one['name']}"]
    words += [word for name in one.get("without", ()) for word in ("--no-plugin", name)]
    words += [word for name in one.get("plugins", ()) for word in ("--plugin", name)]
    words += [word for value in one.get("set", ()) for word in ("--set", os.path.expandvars(value))]
    words += [f"--engine-arg={word}" for word in one.get("engine_args", ())]
    if one["engine_version"]:
        words += ["--engine-version", one["engine_version"]]
    if one["backend"] in pythons:
        words += ["--engine-python", pythons[one["backend"]]]
    return words


def run_one(
    row: dict[str, Any],
    one: dict[str, Any],
    folder: Path,
    out: Path,
    pythons: dict[str, str],
    locks: Sequence[Path],
    starting: Path | None,
    *,
    plan_only: bool,
) -> None:
    """Fills ``row`` as far as it gets."""
    log, env = out / f"{one['name']}.log", dict(one.get("env", {}))
    words = stack_words(one, folder, pythons)
    code, plan = optistack(["plan", *words, "--json"], env, log)
    if "budget" not in plan:
        row |= {"failed": "plan", "exit_code": code, "error": plan.get("error", "")}
        return
    context = int(plan["spec"]["workload"]["input_tokens"]) if plan["spec"].get("workload") else 0
    row |= {
        "engine_version": plan["engine"]["version"],
        "planned_kv_tokens": plan["budget"]["kv_tokens"],
        "bytes_per_kv_token": plan["budget"]["bytes_per_kv_token"],
        "bandwidth_steps_s": bandwidth_steps_s(plan, context),
    }
    refused = [finding["message"] for finding in plan["findings"] if finding["severity"] == "error"]
    refused += [*plan["flag_check"]["problems"], plan["budget"]["reason"]]
    if code:
        row |= {"failed": "plan", "exit_code": code, "error": " ".join(filter(None, refused))}
    if code or plan_only:
        return
    try:
        with held(starting, alone=False):
            code, applied = optistack(["apply", *words, *one.get("apply", ()), "--keep", "--json"], env, log)
        if "receipts" not in applied:
            row |= {"failed": "apply", "exit_code": code, "error": applied.get("error", "")}
            return
        try:
            with held(starting if one.get("quiet") else None, alone=True), alone(locks):
                after_start(row, one, applied, code, folder, out, env, log)
        finally:
            keep_log(one["name"], out)
            row |= speed(plan, row.get("figures", []))
    finally:
        optistack(["down", one["name"]], env, log)


def after_start(
    row: dict[str, Any],
    one: dict[str, Any],
    applied: dict[str, Any],
    code: int,
    folder: Path,
    out: Path,
    env: dict[str, str],
    log: Path,
) -> None:
    receipts = applied["receipts"]
    (out / f"{one['name']}.receipt.json").write_text(json.dumps(receipts, indent=1) + "\n")
    lines = [line for receipt in receipts for line in receipt["results"]]
    kv = next((line for line in lines if line["id"] == "budget.kv_tokens"), None)
    said = kv and str(kv["engine_says"]).replace(",", "")
    row |= {
        "apply_exit_code": code,
        "checks_failed": sorted(line["id"] for line in lines if line["status"] == "fail"),
        "reported_kv_tokens": int(float(said)) if said and said.replace(".", "").isdecimal() else None,
        "proof": kv and kv["proof"],
    }
    url = applied["endpoints"][0]
    replicas = [receipt["endpoint"] for receipt in receipts if receipt["endpoint"] != url]
    engines = [word for replica in replicas for word in ("--engine", replica)]
    if "bench" in one:
        words = ["bench", "--endpoint", url, *engines, "--out", str(out / one["name"]), "--json"]
        try:
            row["bench_exit_code"], _ = optistack([*words, *map(str, one["bench"])], env, log)
        finally:
            row["figures"] = figures(out / one["name"] / "result.json")
    if "conformance" in one:
        words = ["conformance", "--endpoint", url, "--json", *map(str, one["conformance"])]
        row["conformance_exit_code"], verdict = optistack(words, env, log)
        row["conformance"] = verdict.get("verdict")
        (out / f"{one['name']}.conformance.json").write_text(json.dumps(verdict, indent=1) + "\n")
    places = {
        "python": sys.executable,
        "url": url,
        "out": str(out.absolute()),
        "name": one["name"],
        "stack": str((folder / one["stack"]).absolute()),
    }
    row["checks"] = {}
    for name, line in one.get("checks", {}).items():
        line = line.replace("{engines}", shlex.join(engines))
        row["checks"][name] = check(line, places, out / f"{one['name']}.{name}.json", env, log)


def figures(file: Path) -> list[dict[str, float]]:
    """Those of each repeat of the first point; none where nothing was measured."""
    try:
        points = json.loads(file.read_text())["points"]
    except (OSError, ValueError):
        return []
    return [repeat["figures"] for point in points[:1] for repeat in point["repeats"]]


def keep_log(name: str, out: Path) -> None:
    """What the engine says of memory: DIR/NAME.memory.txt."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    lines = []
    for file in sorted((state / "optistack/deployments" / name / "logs").glob("*.log")):
        text = file.read_text(errors="replace")
        lines += [line[:300] for line in text.splitlines() if MEMORY.search(line)]
    (out / f"{name}.memory.txt").write_text("\n".join(lines[:80]) + "\n")


def missed(row: dict[str, Any]) -> bool:
    """Whether a configuration failed or was ended, a check of it did, or its engine reports other KV tokens than
    planned, or none. Inconclusive (4) is an answer."""
    if "failed" in row or "ended" in row:
        return True
    codes = [row.get("apply_exit_code"), row.get("bench_exit_code"), row.get("conformance_exit_code")]
    if any(code not in (None, 0, INCONCLUSIVE) for code in (*codes, *row.get("checks", {}).values())):
        return True
    said = row.get("reported_kv_tokens", row["planned_kv_tokens"])
    return said is None or abs(said / row["planned_kv_tokens"] - 1) > KV_TOLERANCE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--engine-python", action="append", default=[], metavar="BACKEND=PATH")
    parser.add_argument("--engine-version", metavar="V", help="to plan for, where there is no engine")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--lock", action="append", default=[], type=Path, metavar="FILE")
    parser.add_argument("--starting", type=Path, metavar="FILE")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="where rows go, DIR/rows.json otherwise")
    given = parser.parse_args()
    document = yaml.safe_load(given.file.read_text())
    pythons = dict(word.split("=", 1) for word in given.engine_python)
    if unknown := {*(given.only or ())} - {one["name"] for one in document["configurations"]}:
        parser.error(f"{given.file} has no configuration {', '.join(sorted(unknown))}")
    for lock in filter(None, (*given.lock, given.starting)):
        if not lock.parent.is_dir():
            parser.error(f"there is no folder {lock.parent} for {lock}")
    with termination_raises():
        try:
            return run_all(document, given, pythons)
        except KeyboardInterrupt:
            return 130


def run_all(document: dict[str, Any], given: argparse.Namespace, pythons: dict[str, str]) -> int:
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + given.seconds
    for configuration in document["configurations"]:
        one = {**document.get("common", {}), **configuration, "engine_version": given.engine_version}
        if given.only and one["name"] not in given.only:
            continue
        began = time.monotonic()
        row: dict[str, Any] = {"name": one["name"], "backend": one["backend"]}
        rows.append(row)
        try:
            if began > end:
                row |= {"failed": "start", "exit_code": None, "error": "not begun: the time was over"}
            else:
                locks = given.lock, given.starting
                run_one(row, one, given.file.parent, given.out, pythons, *locks, plan_only=given.plan_only)
        except KeyboardInterrupt as told:
            row["ended"] = str(told) or "SIGINT"
            raise
        finally:
            row |= {"seconds": round(time.monotonic() - began, 1), "asked": one}
            text = json.dumps({"title": document["title"], "rows": rows}, indent=1) + "\n"
            (given.rows or given.out / "rows.json").write_text(text)
            print(describe(row), flush=True)
    return int(any(missed(row) for row in rows))


def describe(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['name']:<24} {row['failed']} failed ({row['exit_code']}): {str(row.get('error', ''))[:200]}"
    text = f"{row['name']:<24}"
    if "ended" in row:
        text += f" ended by {row['ended']}"
    if "planned_kv_tokens" in row:
        text += f" planned {row['planned_kv_tokens']:>12,}"
    if row.get("reported_kv_tokens"):
        share = row["reported_kv_tokens"] / row["planned_kv_tokens"] - 1
        text += f"  reported {row['reported_kv_tokens']:>12,}  {share:+.2%}"
    if row.get("bandwidth_steps_s"):
        text += f"  bandwidth allows {row['bandwidth_steps_s']:,.0f} steps/s"
    if "measured_user_tokens_s" in row:
        text += f"  measured {row['measured_user_tokens_s']:,.1f} tokens/s/user"
    if "measured_over_predicted" in row:
        text += f", {row['measured_over_predicted']:.0%} of the {row['predicted_user_tokens_s']:,.1f} predicted"
    return text


if __name__ == "__main__":
    sys.exit(main())
