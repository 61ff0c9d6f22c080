"""Does the running engine draft, as many tokens as planned, and does it still answer as the target would?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from optistack.errors import CheckFailedError
from optistack.verify.receipt import CheckResult, Status
from optistack_conformance.answers import NotScoredError
from optistack_conformance.greedy import Generation, generate, score
from optistack_conformance.margin import bound_nat, judge
from optistack_dflash.probe_counters import Drafting, sglang_fields, vllm_counters, vllm_moved
from optistack_dflash.probe_warm import warm_acceptance

if TYPE_CHECKING:
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint

METHOD = "dflash"
MAX_TOKENS = 64
CODE_PROMPTS = (
    "def fibonacci(n):\n    ",
    "import json\n\n\ndef load_settings(path):\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def count_words(text):\n    counts = {}\n    for word in text.split():\n",
    "def is_prime(number):\n    if number < 2:\n        return False\n",
    "import unittest\n\n\nclass TestAdd(unittest.TestCase):\n    def test_add(self):\n",
    "def read_lines(path):\n    with open(path) as file:\n",
    "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n    parser.add_argument(",
)
"""What drafting is measured on, the same for every drafter and engine: code, which drafters are mostly for."""


def probe(plan: Plan, endpoint: Endpoint) -> list[CheckResult]:
    """The checks of the module's title: greedy answers to built-in code prompts, and one long prompt sent twice."""
    if plan.stack.speculation.method.value != METHOD:
        return []
    before = vllm_counters(endpoint)
    try:
        generations = [generate(endpoint, prompt, max_tokens=MAX_TOKENS) for prompt in CODE_PROMPTS]
    except NotScoredError as error:
        return [_result(plan, "drafts-move", Status.UNPROVEN, engine_says="no token ids", why=str(error))]
    except CheckFailedError as error:
        return [_result(plan, "drafts-move", Status.FAIL, engine_says="an error", why=str(error))]
    sglang = plan.engine.backend == "sglang"
    drafting = sglang_fields(one.raw for one in generations) if sglang else vllm_moved(endpoint, before)
    results = [*_judge_drafting(plan, drafting), _greedy_margin(plan, endpoint, generations)]
    drafts = drafting is None or drafting.drafts > 0
    return [*results, warm_acceptance(plan, endpoint)] if drafts else results


def _judge_drafting(plan: Plan, drafting: Drafting | None) -> Iterator[CheckResult]:
    if drafting is None:
        yield _result(
            plan,
            "drafts-move",
            Status.UNPROVEN,
            engine_says="no metrics",
            why="the engine shows no metrics page, so whether it drafts cannot be seen",
        )
        return
    moved = drafting.drafts > 0
    planned = plan.stack.speculation.num_draft_tokens.value
    idle = (
        "it accepted nothing: the draft is untrained or was trained for another target" if not drafting.accepted else ""
    )
    yield _result(
        plan,
        "drafts-move",
        Status.PASS if moved else Status.FAIL,
        engine_says=drafting.describe() if moved else "no draft at all",
        proof=drafting.proof,
        why=idle if moved else "the engine answered without drafting",
    )
    if not moved:
        return
    yield _draft_tokens(plan, drafting, planned or 0)
    least = plan.options_of("dflash").get("min_acceptance_length")
    if least is not None:
        enough = drafting.acceptance_length >= least
        yield _result(
            plan,
            "acceptance-length",
            Status.PASS if enough else Status.FAIL,
            asked=f"at least {least:g} tokens a step",
            engine_says=f"{drafting.acceptance_length:.2f} tokens a step over {drafting.drafts:g} steps of "
            f"{len(CODE_PROMPTS)} code prompts",
            proof=drafting.proof,
        )


def _draft_tokens(plan: Plan, drafting: Drafting, planned: int) -> CheckResult:
    """A wrong number shows in every draft, so the mean is off by one and more; that of the right number is a little
    less where some drafts are cut short, and other clients' drafts are counted, too."""
    mean = drafting.tokens_per_draft
    exact = abs(mean - planned) < 1e-6
    short = planned - 1 < mean < planned and not exact
    mostly_whole = short and mean > planned - 0.5
    why = (
        "some drafts were cut short: at the end of a context or by a grammar, of other requests perhaps"
        if short
        else ""
    )
    status = Status.PASS if exact or mostly_whole else Status.UNPROVEN if short else Status.FAIL
    return _result(
        plan,
        "draft-tokens",
        status,
        asked=f"{planned} tokens a draft",
        engine_says=f"{mean:.5g} tokens a draft",
        proof=drafting.proof,
        why=why,
    )


def _greedy_margin(plan: Plan, endpoint: Endpoint, generations: Sequence[Generation]) -> CheckResult:
    bound = bound_nat(plan.stack.kv.dtype.value)
    asked = f"every greedy token within {bound:g} nat of the target's best"
    proof = "prompt logprobs of the generated tokens, scored by the same engine in one prefill"
    try:
        verdict = judge(
            (token for number, one in enumerate(generations) for token in score(endpoint, one, sequence=number)), bound
        )
    except NotScoredError as error:
        return _result(plan, "greedy-margin", Status.UNPROVEN, asked=asked, engine_says="no scores", why=str(error))
    except CheckFailedError as error:
        return _result(plan, "greedy-margin", Status.FAIL, asked=asked, engine_says="an error", why=str(error))
    why = "" if verdict.passed else "speculation changed the answer by more than rounding does"
    status = Status.PASS if verdict.passed else Status.FAIL
    return _result(plan, "greedy-margin", status, asked=asked, engine_says=verdict.describe(), proof=proof, why=why)


def _result(
    plan: Plan, check: str, status: Status, *, engine_says: str, asked: str = "", proof: str = "", why: str = ""
) -> CheckResult:
    speculation = plan.stack.speculation
    return CheckResult(
        id=f"dflash/{check}",
        promised_by="dflash",
        asked=asked or f"drafts by {speculation.draft_checkpoint.value}",
        engine_says=engine_says,
        proof=proof,
        status=status,
        why=why,
    )
