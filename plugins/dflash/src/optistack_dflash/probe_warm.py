"""Are drafts accepted as often after a hit in the prefix cache as after a prefill?

A drafter reads what the target left behind for the prompt: its own KV, the target's hidden states. Where a cache brings
back the target's KV alone, the answer stays right and drafts are accepted less, silently: sglang#31600 saw 5.94 fall to
2.87. So a prompt that nobody has seen is sent twice, and the two acceptance lengths are compared.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from itertools import takewhile
from math import sqrt
from typing import TYPE_CHECKING, Any

from optistack.errors import CheckFailedError
from optistack.verify.receipt import CheckResult, Status
from optistack_conformance.statistics.acceptance import Drafts
from optistack_dflash.probe_counters import Drafting, sglang_fields, vllm_counters, vllm_moved

if TYPE_CHECKING:
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint

CHECK = "dflash/warm-acceptance"
LEAST_RATIO = 0.95
"""Of the warm acceptance length to the cold one. Measured with vLLM 0.32 on a CPU: 1.00, trained or not."""

CHANCE = 2.0
"""Standard errors by which the warm length must be below the cold one: one start in 43 fails by chance. On an H200 44
warm drafts gave 2.89 and 41 cold ones 3.10, 0.4 of them; `optistack conformance` then saw 1.32 and 1.32."""

MIN_DRAFTS = 16
"""In each run. With 128 tokens that is an acceptance length of up to 8."""

MAX_TOKENS = 128
PAGES = 6
"""Pages that the prompt fills: vLLM leaves the last two of a repeat out."""

MIN_PROMPT_TOKENS = 512
MIN_LINES = 12
LINE_TOKENS = 20
"""At most, for one line of the prompt; at least half of that."""


@dataclass(frozen=True)
class Run:
    """One answer: its text, the prompt's tokens, how many came from the cache (None: not told), and the drafting."""

    text: str
    prompt_tokens: int
    cached_tokens: int | None
    drafting: Drafting | None


def warm_acceptance(plan: Plan, endpoint: Endpoint) -> CheckResult:
    """The check of the module's title. Sends one prompt of several pages twice, with 128 greedy tokens each time."""
    if plan.stack.serving.prefix_caching.value is False:
        return _result(Status.UNPROVEN, "nothing", why="the plan switches prefix caching off: no run is ever warm")
    text = prompt(plan.stack.kv.page_size_tokens.value or 1, plan.stack.serving.context_tokens.value)
    if not text:
        return _result(Status.UNPROVEN, "nothing", why="the context is too short for a prompt of several pages")
    ask = _ask_sglang if plan.engine.backend == "sglang" else _ask_vllm
    groups = plan.spec.parallel.attention_data > 1
    try:
        return judge(ask(endpoint, text, groups), ask(endpoint, text, groups))
    except CheckFailedError as error:
        return _result(Status.FAIL, "an error", why=str(error))


def prompt(page_tokens: int, context_tokens: int | None) -> str:
    """A list that nobody has seen and that is easy to go on with; ``""`` where the context has no room for one."""
    lines = max(PAGES * page_tokens, MIN_PROMPT_TOKENS) * 2 // LINE_TOKENS
    if context_tokens is not None:
        lines = min(lines, (context_tokens - MAX_TOKENS) // LINE_TOKENS - 1)
    if lines < MIN_LINES:
        return ""
    items = (f"Item {number}: {number} boxes on shelf {number % 7}." for number in range(1, lines))
    return "\n".join((f"Inventory {secrets.token_hex(8)}", *items, f"Item {lines}:"))


def judge(cold: Run, warm: Run) -> CheckResult:
    """The verdict on the two runs. Pure."""
    if cold.drafting is None or warm.drafting is None:
        return _result(Status.UNPROVEN, "no metrics", why="the engine shows no metrics page")
    if warm.cached_tokens is None:
        why = "the engine does not say how much of the repeated prompt was cached; switch the cache report on"
        return _result(Status.UNPROVEN, _lengths(cold, warm), why=why)
    if warm.cached_tokens == 0 or warm.cached_tokens <= (cold.cached_tokens or 0):
        return _result(
            Status.UNPROVEN,
            f"{warm.cached_tokens:,} of {warm.prompt_tokens:,} tokens cached, {cold.cached_tokens or 0:,} before",
            why="the repeat was no warmer than the first run",
        )
    says = f"{_lengths(cold, warm)}; {warm.cached_tokens:,} of {warm.prompt_tokens:,} prompt tokens cached"
    proof = f"{warm.drafting.drafts:g} warm and {cold.drafting.drafts:g} cold drafts; {warm.drafting.proof}"
    if cold.drafting.drafts >= MIN_DRAFTS and not warm.drafting.drafts:
        return _result(Status.FAIL, says, proof, "the engine does not draft after a hit in its cache")
    few = min(cold.drafting.drafts, warm.drafting.drafts)
    if few < MIN_DRAFTS:
        return _result(Status.UNPROVEN, says, proof, f"{few:g} drafts are too few to tell; {MIN_DRAFTS} are needed")
    if warm.drafting.acceptance_length >= LEAST_RATIO * cold.drafting.acceptance_length:
        idle = not (cold.drafting.accepted or warm.drafting.accepted)
        # Nothing can be lost where nothing is accepted: drafting goes on after a hit, and no more is shown.
        why = "no draft is accepted either way, so this shows only that a hit does not stop drafting" if idle else ""
        return _result(Status.PASS, says, proof, why)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(cold.text, warm.text, strict=False)))
    if 2 * alike < min(len(cold.text), len(warm.text)):
        return _result(Status.UNPROVEN, says, proof, f"the answers part at character {alike}: two texts, not one")
    if shortfall(cold.drafting, warm.drafting) < CHANCE:
        return _result(Status.UNPROVEN, says, proof, "so few drafts may differ by that much by chance")
    return _result(Status.FAIL, says, proof, "what the draft needs of a cached prompt does not come back with it")


def shortfall(cold: Drafting, warm: Drafting) -> float:
    """By how many standard errors the warm acceptance length is below the cold one, drafts being geometric. Pure."""
    was, now = (Drafts(run.drafts, run.accepted) for run in (cold, warm))
    variance = was.variance + now.variance
    return (was.length - now.length) / sqrt(variance) if variance else 0.0


def _lengths(cold: Run, warm: Run) -> str:
    lengths = (run.drafting.acceptance_length if run.drafting else 1.0 for run in (warm, cold))
    return "acceptance length {:.2f} warm, {:.2f} cold".format(*lengths)


def _ask_vllm(endpoint: Endpoint, text: str, groups: bool) -> Run:
    """Of attention groups the first is asked, both times: each has a cache of its own."""
    before = vllm_counters(endpoint)
    headers = {"X-data-parallel-rank": "0"} if groups else None
    answer = endpoint.complete(text, max_tokens=MAX_TOKENS, headers=headers, ignore_eos=True)
    return Run(answer.text, answer.prompt_tokens, answer.cached_tokens, vllm_moved(endpoint, before))


def _ask_sglang(endpoint: Endpoint, text: str, groups: bool) -> Run:
    body: dict[str, Any] = {"text": text}
    body["sampling_params"] = {"temperature": 0.0, "max_new_tokens": MAX_TOKENS, "ignore_eos": True}
    if groups:
        body["routed_dp_rank"] = 0
    response = endpoint.request("POST", "/generate", json=body)
    if response.status_code != 200:
        raise CheckFailedError(f"{endpoint.url} answered {response.status_code} to /generate: {response.text[:300]}")
    answer: dict[str, Any] = response.json()
    meta = answer["meta_info"]
    cached = meta.get("cached_tokens")
    return Run(
        text=str(answer.get("text") or ""),
        prompt_tokens=int(meta.get("prompt_tokens") or 0),
        cached_tokens=None if cached is None else int(cached),
        drafting=sglang_fields([answer]),
    )


def _result(status: Status, says: str, proof: str = "", why: str = "") -> CheckResult:
    return CheckResult(
        id=CHECK,
        promised_by="dflash",
        asked=f"drafts accepted after a cached prompt at least {LEAST_RATIO:g} times as often as after a new one",
        engine_says=says,
        proof=proof,
        status=status,
        why=why,
    )
