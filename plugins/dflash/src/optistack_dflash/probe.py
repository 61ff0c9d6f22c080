"""Does the running engine draft, as many tokens as planned, and does it still answer as the target would?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optistack.errors import CheckFailedError
from optistack.verify.receipt import CheckResult, Status
from optistack_conformance.margin import (
    PROMPTS,
    Generation,
    NotScoredError,
    bound_nat,
    generate,
    judge,
    score,
)

if TYPE_CHECKING:
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint

METHOD = "dflash"
PROBE_PROMPTS = PROMPTS[:8:2]
MAX_TOKENS = 24
COUNTERS_DEADLINE_S = 10.0
VLLM_COUNTERS = (
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
)
SGLANG_FIELDS = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")


@dataclass(frozen=True)
class Drafting:
    """How often the engine drafted, how many tokens it proposed and how many were accepted. ``proof`` says where."""

    drafts: float
    proposed: float
    accepted: float
    proof: str

    @property
    def tokens_per_draft(self) -> float:
        return self.proposed / self.drafts if self.drafts else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens that a step yields on average: the accepted ones and the bonus token of the target."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    def describe(self) -> str:
        return (
            f"{self.drafts:g} drafts of {self.tokens_per_draft:g} tokens, {self.accepted:g} accepted: "
            f"acceptance length {self.acceptance_length:.2f}"
        )


def probe(plan: Plan, endpoint: Endpoint) -> list[CheckResult]:
    """The checks of the module's title, from one greedy generation of a few prompts."""
    if plan.stack.speculation.method.value != METHOD:
        return []
    before = _vllm_counters(endpoint)
    try:
        generations = [generate(endpoint, prompt, max_tokens=MAX_TOKENS) for prompt in PROBE_PROMPTS]
    except NotScoredError as error:
        return [_result(plan, "drafts-move", Status.UNPROVEN, engine_says="no token ids", why=str(error))]
    except CheckFailedError as error:
        return [_result(plan, "drafts-move", Status.FAIL, engine_says="an error", why=str(error))]
    sglang = plan.engine.backend == "sglang"
    drafting = _sglang_fields(generations) if sglang else _vllm_moved(endpoint, before)
    return [*_judge_drafting(plan, drafting), _greedy_margin(plan, endpoint, generations)]


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
    as_planned = abs(drafting.tokens_per_draft - (planned or 0)) < 1e-6
    yield _result(
        plan,
        "draft-tokens",
        Status.PASS if as_planned else Status.FAIL,
        asked=f"{planned} tokens a draft",
        engine_says=f"{drafting.tokens_per_draft:g} tokens a draft",
        proof=drafting.proof,
    )
    least = plan.options_of("dflash").get("min_acceptance_length")
    if least is not None:
        enough = drafting.acceptance_length >= least
        yield _result(
            plan,
            "acceptance-length",
            Status.PASS if enough else Status.FAIL,
            asked=f"at least {least:g} tokens a step",
            engine_says=f"{drafting.acceptance_length:.2f} tokens a step over {drafting.drafts:g} steps",
            proof=drafting.proof,
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


def _vllm_counters(endpoint: Endpoint) -> Drafting | None:
    """The counters as they stand; zero where the page has none of them, None without a metrics page."""
    metrics = endpoint.metrics()
    if not metrics.samples:
        return None
    drafts, proposed, accepted = (metrics.total(name) or 0.0 for name in VLLM_COUNTERS)
    return Drafting(drafts, proposed, accepted, VLLM_COUNTERS[0])


def _vllm_moved(endpoint: Endpoint, before: Drafting | None) -> Drafting | None:
    """By how much the counters moved since ``before``. They are published a little after the answer is."""
    deadline = time.monotonic() + COUNTERS_DEADLINE_S
    while True:
        now = _vllm_counters(endpoint)
        if before is None or now is None:
            return None
        if now.drafts > before.drafts or time.monotonic() >= deadline:
            proof = f"{', '.join(VLLM_COUNTERS)}: moved by {now.drafts - before.drafts:g}, "
            proof += f"{now.proposed - before.proposed:g}, {now.accepted - before.accepted:g}"
            return Drafting(
                now.drafts - before.drafts, now.proposed - before.proposed, now.accepted - before.accepted, proof
            )
        time.sleep(0.1)


def _sglang_fields(generations: Sequence[Generation]) -> Drafting:
    """SGLang reports drafting with each answer, in ``meta_info``; an engine that does not draft has no such field."""
    drafts, proposed, accepted = (
        sum(float(one.raw["meta_info"].get(field) or 0) for one in generations) for field in SGLANG_FIELDS
    )
    return Drafting(drafts, proposed, accepted, f"meta_info of /generate: {', '.join(SGLANG_FIELDS)}")


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
