"""Start a list of configurations one after the other: the plan held against the engine, and the benchmark on each.

    python benchmarks/run_configurations.py benchmarks/configurations/plan-on-cpu.yaml --out DIR [--plan-only]
        [--engine-python BACKEND=PATH] [--engine-version V] [--only NAME] [--seconds N]

A file of configurations has a `title`, what it `needs`, `common` fields, and `configurations`: each has a name, a stack
(relative to the file), a backend, and, where wanted, `without` and `plugins` (left out and added), `set`,
`engine_args`, `env`, and the words of `apply`, `bench` and `conformance` beside those that the runner gives. `checks`
are further command lines, by name, run from the repository's root on the running engine; {url}, {out}, {name} and
{stack} are filled in, and what they print is kept as DIR/NAME.CHECK.json. optistack fills in `${MODELS}` and other
variables. Each gets a row in DIR/rows.json as soon as it is done: KV tokens planned and reported, steps a second that
the memory's bandwidth allows, the benchmark's figures, tokens/s/user measured over what the bandwidth allows, and where
an engine refuses, what it said. `--plan-only` plans and starts nothing; `--seconds` begins no configuration later than
that. The exit code is 1 when a configuration failed or missed the plan by more than 2%.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

KV_TOLERANCE = 0.02
ROOT = Path(__file__).parents[1]
CHECK_TIMEOUT_S = 400
MEMORY = re.compile(r"GiB|GB|KV cache|max_total_num_tokens|scales?\b", re.IGNORECASE)


def optistack(words: list[str], env: dict[str, str], log: Path) -> tuple[int, Any]:
    """Exit code and JSON document of a command; its stderr goes to ``log``."""
    done = subprocess.run(
        [sys.executable, "-m", "optistack.cli", *words], capture_output=True, text=True, env={**os.environ, **env}
    )
    with log.open("a") as file:
        file.write(f"$ optistack {' '.join(words)}\n{done.stderr}\n")
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, {"error": done.stderr[-500:]}


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


def bandwidth_steps_s(plan: dict[str, Any], context_tokens: float, users: float = 1.0) -> float | None:
    """Decoding steps a second, when reading memory is all that takes time: bandwidth over the bytes of a step.

    Those are the weights that the tokens of ``users`` requests use (of the routed experts those that one of them is
    routed to, evenly and by chance; those of drafts that are verified are left out), the draft's, and the KV of
    ``context_tokens`` of each. None where the bandwidth is not known (a CPU)."""
    gpu = plan["share"]["gpu"] or {}
    if not gpu.get("hbm_bandwidth_bytes_s"):
        return None
    budget, moe = plan["budget"], plan["model"]["moe"] or {}
    step = budget["bytes_per_kv_token"] * context_tokens * users
    for line in budget["weights"]:
        share = 1.0
        if line["label"] == "routed experts":
            share -= (1 - moe["experts_per_token"] / moe["routed_experts"]) ** users
        # One row of the table is read for a token; tied weights are read again as the output layer, which is counted.
        step += line["bytes"] * share
    step += sum(line["bytes"] for line in budget["charges"] if line["label"] == "draft weights")
    return float(gpu["hbm_bandwidth_bytes_s"]) / step


def speed(plan: dict[str, Any], figures: list[dict[str, float]]) -> dict[str, float]:
    """Tokens/s/user as measured, as the bandwidth allows, and their ratio, in the mean over the repeats of a benchmark.

    Predicted are the steps a second for the prompts and the requests in flight that were measured (in the mean, spread
    evenly over the replicas), times the tokens that a step gave: the acceptance length, 1 without speculation. Nothing
    where no answer had two tokens; without the prediction where the bandwidth is not known.
    """
    names = ("user_tokens_s_p50", "in_flight", "prompt_tokens_mean", "output_tokens_mean")
    whole = [repeat for repeat in figures if all(name in repeat for name in names)]
    if not whole:
        return {}
    measured, in_flight, prompt, output = (fmean(repeat[name] for repeat in whole) for name in names)
    found = {"measured_user_tokens_s": measured}
    users = max(1.0, in_flight / max(1, len(plan["launches"])))
    steps_s = bandwidth_steps_s(plan, prompt + output / 2, users)
    if steps_s is not None:
        accepted = fmean(repeat.get("acceptance_length", 1.0) for repeat in whole)
        predicted = steps_s * accepted
        found |= {"requests_a_replica": users, "acceptance_length": accepted, "predicted_user_tokens_s": predicted}
        found["measured_over_predicted"] = measured / predicted
    return found


def run_one(
    one: dict[str, Any], folder: Path, out: Path, pythons: dict[str, str], *, plan_only: bool
) -> dict[str, Any]:
    log, env = out / f"{one['name']}.log", dict(one.get("env", {}))
    words = stack_words(one, folder, pythons)
    code, plan = optistack(["plan", *words, "--json"], env, log)
    row: dict[str, Any] = {"name": one["name"], "backend": one["backend"]}
    if "budget" not in plan:
        return {**row, "failed": "plan", "exit_code": code, "error": plan.get("error", "")}
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
        return {**row, "failed": "plan", "exit_code": code, "error": " ".join(filter(None, refused))}
    if plan_only:
        return row
    code, applied = optistack(["apply", *words, *one.get("apply", ()), "--keep", "--json"], env, log)
    if "receipts" not in applied:
        return {**row, "failed": "apply", "exit_code": code, "error": applied.get("error", "")}
    try:
        row |= after_start(one, applied, code, folder, out, env, log)
        return row | speed(plan, row.get("figures", []))
    finally:
        optistack(["down", one["name"]], env, log)


def after_start(
    one: dict[str, Any], applied: dict[str, Any], code: int, folder: Path, out: Path, env: dict[str, str], log: Path
) -> dict[str, Any]:
    receipts = applied["receipts"]
    (out / f"{one['name']}.receipt.json").write_text(json.dumps(receipts, indent=1) + "\n")
    lines = [line for receipt in receipts for line in receipt["results"]]
    kv = next((line for line in lines if line["id"] == "budget.kv_tokens"), None)
    said = kv and str(kv["engine_says"]).replace(",", "")
    row: dict[str, Any] = {
        "apply_exit_code": code,
        "checks_failed": sorted(line["id"] for line in lines if line["status"] == "fail"),
        "reported_kv_tokens": int(float(said)) if said and said.replace(".", "").isdecimal() else None,
        "proof": kv and kv["proof"],
    }
    url = applied["endpoints"][0]
    if "bench" in one:
        words = ["bench", "--endpoint", url, "--out", str(out / one["name"]), "--json", *map(str, one["bench"])]
        row["bench_exit_code"], result = optistack(words, env, log)
        points = result.get("points") or [{"repeats": []}]
        row["figures"] = [repeat["figures"] for repeat in points[0]["repeats"]]
    if "conformance" in one:
        words = ["conformance", "--endpoint", url, "--json", *map(str, one["conformance"])]
        row["conformance_exit_code"], verdict = optistack(words, env, log)
        row["conformance"] = verdict.get("verdict")
        (out / f"{one['name']}.conformance.json").write_text(json.dumps(verdict, indent=1) + "\n")
    places = {"url": url, "out": str(out.absolute()), "name": one["name"], "stack": str(folder / one["stack"])}
    row["checks"] = {
        name: check(line.format_map(places), out / f"{one['name']}.{name}.json", env, log)
        for name, line in one.get("checks", {}).items()
    }
    keep_log(one["name"], out)
    return row


def check(line: str, file: Path, env: dict[str, str], log: Path) -> int | str:
    """The exit code of a command line; one that takes too long or cannot start is no reason to lose the others."""
    started = time.monotonic()
    try:
        with file.open("w") as out, log.open("a") as errors:
            words = shlex.split(os.path.expandvars(line))
            done = subprocess.run(
                words, stdout=out, stderr=errors, env={**os.environ, **env}, cwd=ROOT, timeout=CHECK_TIMEOUT_S
            )
        code: int | str = done.returncode
    except (OSError, subprocess.TimeoutExpired) as problem:
        code = type(problem).__name__
    with log.open("a") as errors:
        errors.write(f"$ {line}: {code} after {time.monotonic() - started:.1f} s\n")
    return code


def keep_log(name: str, out: Path) -> None:
    """What the engine says of memory: DIR/NAME.memory.txt."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    lines = []
    for file in sorted((state / "optistack/deployments" / name / "logs").glob("*.log")):
        text = file.read_text(errors="replace")
        lines += [line[:300] for line in text.splitlines() if MEMORY.search(line)]
    (out / f"{name}.memory.txt").write_text("\n".join(lines[:80]) + "\n")


def missed(row: dict[str, Any]) -> bool:
    """Whether a configuration failed, or its engine reports other KV tokens than planned."""
    said = row.get("reported_kv_tokens")
    return "failed" in row or (said is not None and abs(said / row["planned_kv_tokens"] - 1) > KV_TOLERANCE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--engine-python", action="append", default=[], metavar="BACKEND=PATH")
    parser.add_argument("--engine-version", metavar="V", help="to plan for, where there is no engine")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    document = yaml.safe_load(given.file.read_text())
    pythons = dict(word.split("=", 1) for word in given.engine_python)
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + given.seconds
    for configuration in document["configurations"]:
        one = {**document.get("common", {}), **configuration, "engine_version": given.engine_version}
        if given.only and one["name"] not in given.only:
            continue
        if time.monotonic() > end:
            rows.append({"name": one["name"], "failed": "not begun: the time was over", "exit_code": 0})
            continue
        began = time.monotonic()
        row = run_one(one, given.file.parent, given.out, pythons, plan_only=given.plan_only)
        row["seconds"] = round(time.monotonic() - began, 1)
        rows.append(row)
        (given.out / "rows.json").write_text(json.dumps({"title": document["title"], "rows": rows}, indent=1) + "\n")
        print(describe(row), flush=True)
    return int(any(missed(row) for row in rows))


def describe(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['name']:<24} {row['failed']} failed ({row['exit_code']}): {str(row.get('error', ''))[:200]}"
    text = f"{row['name']:<24} planned {row['planned_kv_tokens']:>12,}"
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
