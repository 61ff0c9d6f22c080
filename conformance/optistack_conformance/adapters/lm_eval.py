"""lm-evaluation-harness: run it against a server through its ``local-completions`` model, and read what it found.

The harness runs as a program in an environment of its own (``pip install "lm_eval[api]"``); nothing of it is imported.
``export_task`` writes items of our own evals as a task of the harness with local data, so that a run needs no download.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optistack.errors import CheckFailedError, InputError
from optistack_conformance.evals import VERSION
from optistack_conformance.evals.items import Item
from optistack_conformance.outcomes import Outcome
from optistack_conformance.statistics.paired import Paired, judge_non_inferiority, judge_paired

IMPORT_TIMEOUT_S = 120.0
TASK = f"optistack_evals_v{VERSION}"
YAML = """task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{reference}}}}"
target_delimiter: ""
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 96
  do_sample: false
  temperature: 0.0
filter_list:
  - name: stripped
    filter:
      - function: remove_whitespace
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: false
    ignore_punctuation: false
metadata:
  version: {version}
"""


@dataclass(frozen=True)
class Outcomes:
    """What the harness found for one task: its own metrics, and which documents were right, by their id."""

    task: str
    metrics: dict[str, float]
    passed: dict[str, bool]


def export_task(items: Sequence[Item], folder: Path) -> str:
    """Write a task over ``items`` into ``folder`` and return its name. Items that stop elsewhere than at a line's end
    are left out: the harness compares one line."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{TASK}.jsonl"
    lines = [
        json.dumps({"id": item.id, "prompt": item.prompt, "reference": item.reference.strip()})
        for item in items
        if item.stop == ("\n",) and item.suite != "code"
    ]
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = YAML.format(task=TASK, data=json.dumps(str(data.resolve())), version=VERSION)
    (folder / f"{TASK}.yaml").write_text(text, encoding="utf-8")
    return TASK


def check_python(python: str) -> None:
    """Raise InputError when ``python`` is no Python that has the harness."""
    look = [python, "-c", "import lm_eval; print(lm_eval.__name__)"]
    try:
        found = subprocess.run(look, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S)
    except OSError as error:
        raise InputError(f"{python} does not run: {error.strerror}.", fix="Name a Python with lm_eval[api].") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{python} had not imported lm_eval after {IMPORT_TIMEOUT_S:g} s.", fix="Name a Python with lm_eval[api]."
        ) from error
    if "lm_eval" not in found.stdout:
        raise InputError(f"{python} has no lm_eval.", fix='Install it there: pip install "lm_eval[api]".')


def command(
    python: str, url: str, model: str, tasks: Sequence[str], output: Path, *, include: Path | None, concurrency: int
) -> list[str]:
    """The command line that evaluates ``tasks`` on the completions route of the server at ``url``."""
    arguments = f"model={model},base_url={url.rstrip('/')}/v1/completions,num_concurrent={concurrency}"
    words = [python, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args"]
    words += [f"{arguments},tokenizer_backend=None,tokenized_requests=False", "--tasks", *tasks, "--batch_size", "1"]
    words += ["--output_path", str(output), "--log_samples"]
    return words + (["--include_path", str(include)] if include else [])


def run(
    python: str,
    url: str,
    model: str,
    tasks: Sequence[str],
    output: Path,
    *,
    include: Path | None = None,
    concurrency: int = 4,
    timeout_s: float = 3_600.0,
) -> list[Outcomes]:
    """Run the harness that ``python`` has and read its results. Raises CheckFailedError with the end of its own output
    when it fails."""
    words = command(python, url, model, tasks, output, include=include, concurrency=concurrency)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise CheckFailedError(f"lm_eval had not ended on {url} after {timeout_s:g} s.") from error
    if done.returncode:
        raise CheckFailedError(f"lm_eval failed on {url}: {(done.stderr or done.stdout)[-800:]}")
    return read(output)


def read(output: Path) -> list[Outcomes]:
    """The newest results below ``output``, task by task. Raises InputError when there are none."""
    files = sorted(output.rglob("results_*.json"), key=lambda path: path.name)
    if not files:
        raise InputError(
            f"lm_eval ended well and left no results in {output}.", fix="Does that Python have lm_eval 0.4 or newer?"
        )
    newest = files[-1]
    stamp = newest.stem.removeprefix("results_")
    found = []
    for task, metrics in json.loads(newest.read_text(encoding="utf-8"))["results"].items():
        numbers = {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
        samples = newest.with_name(f"samples_{task}_{stamp}.jsonl")
        found.append(Outcomes(task, numbers, _passed(samples) if samples.is_file() else {}))
    return found


def judge(baseline: Outcomes, candidate: Outcomes, margin: float | None) -> tuple[Outcome, Paired]:
    """Candidate against baseline over the documents of a task: by McNemar, or within ``margin`` where one is given."""
    pairs = Paired.of(baseline.passed, candidate.passed)
    if not pairs.n:
        return Outcome.INCONCLUSIVE, pairs
    if margin is not None:
        return judge_non_inferiority(pairs, margin), pairs
    return judge_paired(pairs), pairs


def _passed(samples: Path) -> dict[str, bool]:
    with samples.open(encoding="utf-8") as file:  # not splitlines: documents may hold other ends of lines
        return dict(map(_sample, file))


def _sample(line: str) -> tuple[str, bool]:
    """Id and verdict of one document: its ``id`` field where it has one, else its number."""
    entry: dict[str, Any] = json.loads(line)
    metric = (entry.get("metrics") or ["exact_match"])[0]
    return str(entry["doc"].get("id", entry["doc_id"])), bool(entry.get(metric, 0.0) >= 0.5)
