"""How often a running engine drafted and what it accepted, from the counters that it publishes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint

DEADLINE_S = 10.0
POLL_S = 0.1
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


def vllm_counters(endpoint: Endpoint) -> Drafting | None:
    """The counters as they stand; zero where the page has none of them, None without a metrics page."""
    metrics = endpoint.metrics()
    if not metrics.samples:
        return None
    drafts, proposed, accepted = (metrics.total(name) or 0.0 for name in VLLM_COUNTERS)
    return Drafting(drafts, proposed, accepted, VLLM_COUNTERS[0])


def vllm_moved(endpoint: Endpoint, before: Drafting | None) -> Drafting | None:
    """By how much the counters moved since ``before``, read until two readings agree: they are published a little
    after the answer is."""
    deadline = time.monotonic() + DEADLINE_S
    last = before
    while True:
        now = vllm_counters(endpoint)
        if before is None or now is None:
            return None
        if (now.drafts > before.drafts and now == last) or time.monotonic() >= deadline:
            break
        last = now
        time.sleep(POLL_S)
    drafts, proposed, accepted = (
        now.drafts - before.drafts,
        now.proposed - before.proposed,
        now.accepted - before.accepted,
    )
    proof = f"{', '.join(VLLM_COUNTERS)}: moved by {drafts:g}, {proposed:g}, {accepted:g}"
    return Drafting(drafts, proposed, accepted, proof)


def sglang_fields(answers: Iterable[Mapping[str, Any]]) -> Drafting:
    """SGLang reports drafting with each answer of /generate, in ``meta_info``; an engine that does not draft has no
    such field."""
    infos = [answer["meta_info"] for answer in answers]
    drafts, proposed, accepted = (sum(float(info.get(field) or 0) for info in infos) for field in SGLANG_FIELDS)
    return Drafting(drafts, proposed, accepted, f"meta_info of /generate: {', '.join(SGLANG_FIELDS)}")
