"""The K2 Vendor Verifier's file format: tool calls against those of a reference server.

The user downloads the samples (``samples.jsonl``, each line a chat request) and the reference's results; neither they
nor the verifier's code are part of this package. Two figures come out of it:

``tool_call_f1``     of "the answer ends in a tool call", with the reference's answers as the truth
``schema_accuracy``  of the answers that end in tool calls, the share whose arguments are all valid

A threshold for F1 is not guessed: the reference is run several times, and what it loses against itself is allowed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optistack.errors import CheckFailedError, InputError
from optistack.files import numbered_lines, read_json_line, write_file
from optistack_conformance.answers import generation, read_from
from optistack_conformance.client import CHAT, Client
from optistack_conformance.outcomes import Outcome
from optistack_conformance.statistics.paired import FAIL_ALPHA

TOOL_CALLS = "tool_calls"
ENOUGH_RERUNS = 3
SCHEMA_ACCURACY = 0.99
"""Official results have 100%; good vendors have 99% and more."""


@dataclass(frozen=True)
class ToolCallFigures:
    """``triggered`` answers ended in tool calls; ``valid`` of them have only valid arguments. ``compared`` samples were
    answered by both; ``failed`` ones by the reference only."""

    f1: float
    precision: float
    recall: float
    triggered: int
    valid: int
    compared: int
    failed: int = 0

    @property
    def schema_accuracy(self) -> float:
        return self.valid / self.triggered if self.triggered else float("nan")


def read_lines(path: Path, *, missing: str = "Download the samples first.") -> list[dict[str, Any]]:
    """The objects of a JSONL file. Raises InputError naming the line that is none; ``missing`` is what to do where the
    file cannot be read."""
    fix = "Every line should be one JSON object, as in the verifier's files; was the download or the run broken off?"
    found = []
    for number, line in numbered_lines(path, fix=missing):
        try:
            value = read_json_line(line)
        except ValueError as error:
            raise InputError(f"{path} line {number} is no JSON: {error}.", fix=fix) from error
        if not isinstance(value, dict):
            raise InputError(f"{path} line {number} is no object.", fix=fix)
        found.append(value)
    return found


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The samples, each a chat request. Raises InputError naming the line that is none."""
    found = read_lines(path)
    if not found:
        raise InputError(f"{path} has no samples.", fix="Give the verifier's samples.jsonl.")
    for number, sample in enumerate(found, start=1):
        messages = sample.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise InputError(f"{path} line {number} has no messages.", fix="Give the verifier's samples.jsonl.")
    return found


def read_results(path: Path) -> list[dict[str, Any]]:
    """Results as :func:`run_samples` makes them. Raises InputError naming the line that is none."""
    found = read_lines(path, missing="Make it with --endpoint and --samples.")
    for number, entry in enumerate(found, start=1):
        if not isinstance(entry.get("data_index"), int) or not {"status", "finish_reason"} <= entry.keys():
            raise InputError(f"{path} line {number} is no result of a sample.", fix="Make the file with --out.")
    return found


def write_lines(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write a JSONL file; never half of it."""
    write_file(path, "".join(json.dumps(entry) + "\n" for entry in entries))


def run_samples(client: Client, samples: Sequence[Mapping[str, Any]], *, concurrency: int) -> list[dict[str, Any]]:
    """Send each sample and return results in the verifier's own format, so that its tools read them too."""

    def ask(numbered: tuple[int, Mapping[str, Any]]) -> dict[str, Any]:
        index, sample = numbered
        request = {**sample, "messages": [_message(message) for message in sample["messages"]]}
        request.pop("model", None)
        request.pop("stream", None)
        started = time.monotonic()
        response = client.post(CHAT, **request)
        try:
            body, status = generation(response), "success"
        except CheckFailedError as error:
            body, status = {"error": error.message}, "failed"
        with read_from(client.url):
            choice: dict[str, Any] = (body.get("choices") or [{}])[0]
            finish = choice.get("finish_reason")
            calls = (choice.get("message") or {}).get("tool_calls") or []
        return {
            "data_index": index,
            "request": request,
            "response": body,
            "status": status,
            "finish_reason": finish,
            "tool_calls_valid": all_valid(calls, request.get("tools") or []) if finish == TOOL_CALLS else None,
            "last_run_at": datetime.now(UTC).isoformat(),
            "duration_ms": int((time.monotonic() - started) * 1000),
        }

    return client.parallel(ask, list(enumerate(samples, start=1)), concurrency)


def check_answered(results: Sequence[Mapping[str, Any]]) -> None:
    """Raise CheckFailedError, with what the server said of the first, when not one sample was answered."""
    if results and not any(_answered(entry) for entry in results):
        said = results[0]["response"]["error"]
        raise CheckFailedError(f"None of the {len(results)} samples was answered; of the first: {said}")


def all_valid(calls: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every call names a tool that was offered and its arguments are JSON that fits its schema."""
    import jsonschema

    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    for call in calls:
        try:
            arguments = call["function"]["arguments"]
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
            jsonschema.validate(value, schemas[call["function"]["name"]])
        except (KeyError, TypeError, ValueError, jsonschema.ValidationError):
            return False
    return bool(calls)


def compare(reference: Sequence[Mapping[str, Any]], candidate: Sequence[Mapping[str, Any]]) -> ToolCallFigures:
    """Figures of ``candidate`` with ``reference`` as the truth, over the samples that both answered."""
    truth = {int(entry["data_index"]): entry["finish_reason"] == TOOL_CALLS for entry in reference if _answered(entry)}
    ours = {int(entry["data_index"]): entry for entry in candidate if _answered(entry)}
    common = truth.keys() & ours.keys()
    calls = {index: ours[index]["finish_reason"] == TOOL_CALLS for index in common}
    hits = sum(truth[index] and calls[index] for index in common)
    triggered, expected = sum(calls.values()), sum(truth[index] for index in common)
    precision = hits / triggered if triggered else 0.0
    recall = hits / expected if expected else 0.0
    return ToolCallFigures(
        f1=2 * precision * recall / (precision + recall) if hits else 0.0,
        precision=precision,
        recall=recall,
        triggered=triggered,
        valid=sum(bool(ours[index].get("tool_calls_valid")) for index in common if calls[index]),
        compared=len(common),
        failed=sum(int(entry["data_index"]) in truth for entry in candidate if not _answered(entry)),
    )


def f1_threshold(reruns: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    """The lowest F1 between the first run of the reference and any other, less the spread of these.

    K2-Thinking's published gate has the same shape: 75.8 the lowest, 76 the mean, 73 accepted. Raises InputError with
    fewer than 3 runs beside the first.
    """
    if len(reruns) < ENOUGH_RERUNS + 1:
        raise InputError(
            f"{len(reruns)} runs of the reference do not make a threshold.", fix=f"Run it {ENOUGH_RERUNS + 1} times."
        )
    scores = [compare(reruns[0], rerun).f1 for rerun in reruns[1:]]
    return min(scores) - (max(scores) - min(scores))


def judge(figures: ToolCallFigures, threshold: float) -> Outcome:
    """FAIL below the threshold, or when schema accuracy is below 99% by more than chance; INCONCLUSIVE in between, and
    when samples that the reference answered were not answered: the figures do not speak of them."""
    from scipy.stats import binomtest

    if figures.compared and figures.f1 < threshold:
        return Outcome.FAIL
    if not figures.compared or not figures.triggered:
        return Outcome.INCONCLUSIVE
    invalid = binomtest(figures.valid, figures.triggered, SCHEMA_ACCURACY, alternative="less").pvalue <= FAIL_ALPHA
    if invalid:
        return Outcome.FAIL
    passed = figures.schema_accuracy >= SCHEMA_ACCURACY and not figures.failed
    return Outcome.PASS if passed else Outcome.INCONCLUSIVE


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The samples call the system's message ``_input``."""
    return {**message, "role": "system"} if message.get("role") == "_input" else dict(message)


def _answered(entry: Mapping[str, Any]) -> bool:
    return entry.get("status") == "success"
