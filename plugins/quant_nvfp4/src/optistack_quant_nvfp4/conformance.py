"""What quantized kernels promise in any composition: the same weights whatever the number of rows.

A matrix product in NVFP4 has kernels of its own for one row, for a few and for many (decode, decode in a batch,
prefill), with layouts and scales of their own. One that is wrong shows in the other shapes' eyes; against a model in
BF16, which all of them differ from, it would pass for quantization.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack_conformance.bench import Answer, Bench, bench_case
from optistack_conformance.outcomes import Outcome
from optistack_conformance.statistics.kl import CEILINGS, judge_kl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optistack.cases import ConformanceCase

PROMPTS = 8
BATCHES = (1, 2, 8)
PROOF = "the same tokens decoded at each size and scored in one prefill"


def shapes_agree(bench: Bench) -> Answer:
    """Decoded alone, by twos and by eights, each against one prefill of the same tokens. The bound is that for values
    in 8 bits: NVFP4 rounds activations, so a shape's rounding is coarser than in BF16."""
    bound = CEILINGS["8-bit"]
    prompts = bench.prompts(PROMPTS, "quant-nvfp4/shapes-agree")
    runs = {size: bench.run(prompts, concurrency=size, alone=0) for size in BATCHES}
    verdicts = {size: judge_kl([one.kl for one in run.sequences], None, bound) for size, run in runs.items()}
    margin = bench.margin(*runs.values())
    values = ", ".join(f"{verdict.mean:.2g} nat at {size}" for size, verdict in verdicts.items())
    wrong = [size for size, verdict in verdicts.items() if verdict.outcome is Outcome.FAIL]
    why = f"decoding {' and '.join(map(str, wrong))} at a time is not what a prefill computes" if wrong else ""
    says = f"KL of decode against prefill {values}; {margin.describe()}"
    return Answer.of(not wrong and margin.passed, says, proof=PROOF, why=why or "a token is not the model's own")


CASES: Sequence[ConformanceCase] = (
    bench_case(
        "quant-nvfp4/shapes-agree",
        tier=1,
        summary="Decoding one, two and eight requests at a time gives what a prefill gives.",
        asked=f"KL of at most {CEILINGS['8-bit']:g} nat at each batch size",
        work=shapes_agree,
    ),
)
