"""Faults done by a proxy in front of a running engine: each must fail the case that is meant to see it.

``python -m optistack_conformance.faults.live --endpoint URL [--baseline-file FILE] [--checkpoint DIR] [FAULT ...]``
prints a line for each fault, then the same cases on an honest proxy, and ends with 1 when one is wrong.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from optistack_conformance.faults.catalog import EXPECTED, Fault
from optistack_conformance.faults.proxy import FaultyProxy
from optistack_conformance.outcomes import CaseResult, Outcome
from optistack_conformance.runner import run_suite
from optistack_conformance.selection import Selection

INSIDE = (Fault.CORRUPT_TIER, Fault.STALE_TURN, Fault.BATCH_KERNEL, Fault.COLD_DRAFTS, Fault.ACCEPTS_WRONG_01_PERCENT)
"""What a proxy cannot do to an engine, or (the last) only to the full profile."""

OUTSIDE = tuple(fault for fault in EXPECTED if fault not in INSIDE)


@dataclass(frozen=True)
class Seen:
    """What the ``case`` that is meant to see ``fault`` found."""

    fault: Fault
    case: str
    outcome: Outcome
    why: str
    duration_s: float


def honest(endpoint: str, faults: Iterable[Fault], **settings: object) -> list[CaseResult]:
    """The cases of ``faults`` behind a proxy that changes nothing."""
    return _run(endpoint, Fault.NONE, list(faults), settings)


def try_faults(endpoint: str, faults: Iterable[Fault], **settings: object) -> Iterator[Seen]:
    """Each of ``faults`` in turn. ``settings`` are of ``Selection``: a baseline, a checkpoint."""
    for fault in faults:
        started = time.monotonic()
        (found,) = _run(endpoint, fault, [fault], settings)
        yield Seen(fault, found.id, found.outcome, found.why, time.monotonic() - started)


def _run(endpoint: str, fault: Fault, faults: list[Fault], settings: dict[str, object]) -> list[CaseResult]:
    expected = [EXPECTED[one] for one in faults]
    tiers = sorted({one.tier for one in expected})
    chosen = {"tiers": tiers, "cases": sorted({one.case for one in expected}), **settings}
    if 2 in tiers:
        chosen["lossy"] = "fp8-kv"
    with FaultyProxy(endpoint, fault) as proxy:
        return list(run_suite(Selection.model_validate({"endpoint": proxy.url, **chosen})).results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--baseline-file")
    parser.add_argument("--checkpoint")
    parser.add_argument("faults", nargs="*", type=Fault, default=OUTSIDE)
    given = vars(parser.parse_args())
    settings = {key: given[key] for key in ("baseline_file", "checkpoint") if given[key]}
    faults = [fault for fault in given["faults"] if not EXPECTED[fault].needs or "baseline_file" in settings]
    missed = 0
    print("| fault | seen by | verdict | what it says | s |\n|---|---|---|---|---|")
    for seen in try_faults(given["endpoint"], faults, **settings):
        missed += seen.outcome is not Outcome.FAIL
        cells = (seen.fault.value, seen.case, seen.outcome.value, _cell(seen.why), f"{seen.duration_s:.0f}")
        print(f"| {' | '.join(cells)} |", flush=True)
    # A lossy claim switches comparisons of tier 1 off, so the tiers are honest apart.
    for tier in sorted({EXPECTED[fault].tier for fault in faults}):
        for one in honest(given["endpoint"], [fault for fault in faults if EXPECTED[fault].tier == tier], **settings):
            missed += one.outcome is Outcome.FAIL
            print(f"| none | {one.id} | {one.outcome.value} | {_cell(one.why)} | {one.duration_s:.0f} |", flush=True)
    return int(bool(missed))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:140]


if __name__ == "__main__":
    raise SystemExit(main())
