"""What loading the weights took of a GPU, from the lines that vLLM writes on one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from optistack.facts.node import GIB
from optistack.verify.receipt import Observed

Serve = Callable[..., dict[str, Observed]]

RUN = "cpu-0.32-bfloat16"


@pytest.mark.parametrize(
    ("line", "gib"),
    [
        # H200, 0.26: a DeepSeek-V3 shape in BF16 (planned: 60.32), with NVFP4 experts (24.48), and SmolLM2 in NVFP4.
        (
            "INFO 11-30 10:07:15 [gpu_model_runner.py:5347] Model loading took 60.39 GiB memory and 1.083920 seconds",
            60.39,
        ),
        (
            "INFO 11-30 15:56:10 [gpu_model_runner.py:5347] Model loading took 24.54 GiB memory and 2.204119 seconds",
            24.54,
        ),
        ("INFO 11-30 15:56:07 [model_runner.py:305] Model loading took 0.11 GiB and 3.133175 seconds", 0.11),
        ("INFO 11-30 15:56:07 [model_runner.py:428] Model loading took 0.3 GiB memory and 3.133175 seconds", 0.3),
    ],
)
def test_the_log_says_it_in_the_words_of_every_version(observe: Serve, line: str, gib: float) -> None:
    log = (
        "(EngineCore pid=7) INFO 11-30 10:07:14 [default_loader.py:430] Loading weights took 0.08 seconds\n"
        f"(EngineCore pid=7) {line}\n"
        "(EngineCore pid=7) INFO 11-30 10:08:01 [gpu_worker.py:479] Initial free memory 114.7 GiB, reserved 2.8 GiB\n"
        "(EngineCore pid=7) INFO 11-30 10:08:20 [runner.py:747] Graph capturing finished in 1 secs, took 0.08 GiB\n"
    )
    seen = observe(RUN, log=log)["budget.weight_bytes"]
    assert seen == Observed(value=round(gib * GIB), proof=f"log: Model loading took {gib} GiB")


def test_of_several_ranks_the_one_that_takes_most_counts(observe: Serve) -> None:
    log = "".join(
        f"(Worker_TP{rank} pid={rank}) INFO 11-30 [model_runner.py:305] Model loading took {gib} GiB and 9.1 seconds\n"
        for rank, gib in enumerate((141.2, 9.75, 141.31, 141.2))
    )
    seen = observe(RUN, log=log)["budget.weight_bytes"]
    assert seen.value == round(141.31 * GIB)
    assert seen.proof == "log: Model loading took 141.31 GiB, the most of 4 ranks"


def test_nothing_else_says_it(observe: Serve) -> None:
    assert observe(RUN)["budget.weight_bytes"] == Observed(
        value=None, proof='the log has no line "Model loading took ... GiB"'
    )
    without = observe(RUN, log=False)["budget.weight_bytes"]
    assert without.value is None
    assert "only the engine's log" in without.proof
