"""How often each fault is seen, and how often a clean server fails: the toy server at many seeds.

``python -m optistack_conformance.faults.rates [--seeds N] [FAULT ...]`` prints the table of docs/conformance.md. The
seed decides rounding, where a fault with a rate strikes, and the suite's own prompts and samples.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from optistack_conformance.client import Client
from optistack_conformance.faults.catalog import EXPECTED, Fault
from optistack_conformance.faults.proxy import FaultyProxy
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.outcomes import Outcome
from optistack_conformance.reference import measure_reference, save_reference
from optistack_conformance.runner import run_suite
from optistack_conformance.selection import Selection
from optistack_conformance.statistics.rates import Rate

BASELINE_SEED = 10_000
"""A server of its own, so that candidate and baseline round differently."""


def seen(fault: Fault, seeds: Sequence[int]) -> Rate:
    """Runs, one a seed, in which the case that is meant to see ``fault`` failed."""
    return Rate(sum(_fails(fault, fault, seed) for seed in seeds), len(seeds))


def alarms(fault: Fault, seeds: Sequence[int]) -> Rate:
    """The same case on clean servers."""
    return Rate(sum(_fails(Fault.NONE, fault, seed) for seed in seeds), len(seeds))


def _fails(fault: Fault, looked_for: Fault, seed: int) -> bool:
    expected = EXPECTED[looked_for]
    settings = {"profile": expected.profile, "seed": seed, "cases": (expected.case,), "tiers": (expected.tier,)}
    if expected.tier == 2:
        settings["lossy"] = "fp8-kv"
    with ExitStack() as opened:
        if "baseline" in expected.needs:
            settings["baseline_file"] = opened.enter_context(_Baseline(seed, expected.profile)).path
        server = opened.enter_context(FaultyServer(Fault.NONE if expected.proxied else fault, seed=seed))
        url = server.url
        if expected.proxied:
            url = opened.enter_context(FaultyProxy(url, fault, seed=seed)).url
        report = run_suite(Selection.model_validate({"endpoint": url, **settings}))
    return [one.outcome for one in report.results] == [Outcome.FAIL]


class _Baseline:
    """A recorded baseline of a clean server, for as long as the block lasts."""

    def __init__(self, seed: int, profile: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="optistack-rates-")
        self.path = str(Path(self._folder.name, "baseline.json"))
        with FaultyServer(seed=BASELINE_SEED + seed) as server, Client(server.url) as client:
            selection = Selection.model_validate({"endpoint": server.url, "seed": seed, "profile": profile})
            save_reference(measure_reference(client, selection), Path(self.path))

    def __enter__(self) -> _Baseline:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("faults", nargs="*", type=Fault, default=list(EXPECTED))
    given = parser.parse_args()
    print("| fault | seen | lower 95% bound | the same case on a clean server fails |\n|---|---|---|---|")
    for fault in given.faults:
        found, false = seen(fault, range(given.seeds)), alarms(fault, range(given.seeds))
        cells = (fault.value, f"{found.hits} of {found.runs}", f"{found.lower:.0%}", f"{false.hits} of {false.runs}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
