"""What quantized kernels promise in any composition: the same weights whatever the number of rows.

A matrix product in NVFP4 has kernels of its own for one row, for a few and for many (decode, decode in a batch,
prefill), with layouts and scales of their own. One that is wrong shows in the other shapes' eyes; against a model in
BF16, which all of them differ from, it would pass for quantization.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer, Bench, bench_case
from optistack_conformance.engine import running_requests
from optistack_conformance.outcomes import Outcome
from optistack_conformance.statistics.kl import CEILINGS, judge_kl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optistack.cases import ConformanceCase
    from optistack_conformance.sequences import Run

PROMPTS = 8
BATCHES = (1, 2, 8)
"""Requests at a time. More than half of them at once are batches of that size to kernels, which are made for powers of
two."""

TOKENS = 256
"""Of each request, where the context has room: so that they run long enough to be seen together. SGLang says how many
run in every 40th decode step."""

ATTEMPTS = 3
POLL_S = 0.02
PROOF = "the same tokens decoded at each size and scored in one prefill"


def shapes_agree(bench: Bench) -> Answer:
    """Decoded alone, by twos and by eights, each against one prefill of the same tokens. The bound is that for values
    in 8 bits: NVFP4 rounds activations, so a shape's rounding is coarser than in BF16."""
    bound = CEILINGS["8-bit"]
    prompts = bench.prompts(PROMPTS, "quant-nvfp4/shapes-agree")
    room = (bench.engine.max_tokens or TOKENS + len(prompts[0]) + 1) - len(prompts[0]) - 1
    longer = replace(bench, tokens=max(bench.tokens, min(TOKENS, room)))
    watched = {size: _together(longer, prompts, size) for size in BATCHES}
    runs = {size: run for size, (run, _) in watched.items()}
    verdicts = {size: judge_kl([one.kl for one in run.sequences], None, bound) for size, run in runs.items()}
    margin = bench.margin(*runs.values())
    values = ", ".join(f"{verdict.mean:.2g} nat at {size}" for size, verdict in verdicts.items())
    wrong = [size for size, verdict in verdicts.items() if verdict.outcome is Outcome.FAIL]
    why = f"decoding {' and '.join(map(str, wrong))} at a time is not what a prefill computes" if wrong else ""
    says = f"KL of decode against prefill {values}; {margin.describe()}"
    if wrong or not margin.passed:
        return Answer(Status.FAIL, says, PROOF, why or "a token is not the model's own")
    apart = [_why_apart(size, most) for size, (_, most) in watched.items() if not _seen(size, most)]
    return Answer(Status.UNPROVEN if apart else Status.PASS, says, PROOF, "; ".join(dict.fromkeys(apart)))


def _seen(size: int, most: float | None) -> bool:
    return size == 1 or (most or 0) > size / 2


def _together(bench: Bench, prompts: Sequence[tuple[int, ...]], size: int) -> tuple[Run, float | None]:
    """As :func:`_watched`, and again where they were not seen together: all the runs in one."""
    run, most = _watched(bench, prompts, size)
    sequences = run.sequences
    for _ in range(1, ATTEMPTS):
        if most is None or _seen(size, most):
            break
        run, most = _watched(bench, prompts, size)
        sequences = [*sequences, *run.sequences]
    return replace(run, sequences=sequences), most


def _watched(bench: Bench, prompts: Sequence[tuple[int, ...]], size: int) -> tuple[Run, float | None]:
    """The prompts ``size`` at a time, and how many requests at once the engine said to work on meanwhile, at most; None
    where it does not say. Sending them together does not make it decode them together."""
    done = Event()

    def watch() -> float | None:
        most = None
        while not done.is_set():
            now = running_requests(bench.client)
            most = now if most is None else max(most, now or 0.0)
            done.wait(POLL_S)
        return most

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            run = bench.run(prompts, concurrency=size, alone=0)
        finally:
            done.set()
        return run, watching.result()


def _why_apart(size: int, most: float | None) -> str:
    if most is None:
        return "the engine does not say how many requests it works on at once"
    return f"sent {size} at a time, {most:g} requests were seen to run at once at most"


CASES: Sequence[ConformanceCase] = (
    bench_case(
        "quant-nvfp4/shapes-agree",
        tier=1,
        summary="Decoding one, two and eight requests at a time gives what a prefill gives.",
        asked=f"KL of at most {CEILINGS['8-bit']:g} nat at each batch size",
        work=shapes_agree,
    ),
)
