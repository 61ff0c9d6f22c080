"""The faults, and which part of the suite must see each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """What a server may do wrong. One at a time."""

    NONE = "none"
    DROPPED_TOKEN = "dropped-token"
    DUPLICATED_TOKEN = "duplicated-token"
    STALE_PREFIX = "stale-prefix"
    CORRUPT_TIER = "corrupt-tier"
    WRONG_BONUS = "wrong-bonus"
    ACCEPTS_WRONG_1_PERCENT = "accepts-wrong-1-percent"
    ACCEPTS_WRONG_01_PERCENT = "accepts-wrong-0.1-percent"
    GREEDY_SAMPLING = "greedy-sampling"
    FP8_NOISE = "fp8-noise"
    INT4_NOISE = "int4-noise"
    TRUNCATED_ARGUMENTS = "truncated-arguments"
    WRONG_USAGE = "wrong-usage"
    WRONG_TEMPLATE = "wrong-template"
    LEAKED_STREAM = "leaked-stream"
    LOST_NEEDLE = "lost-needle"
    STALE_TURN = "stale-turn"
    BATCH_KERNEL = "batch-kernel"
    COLD_DRAFTS = "cold-drafts"
    STREAM_USAGE = "stream-usage"
    LEAKED_STOP = "leaked-stop"
    SHIFTED_LOGPROBS = "shifted-logprobs"
    N_DUPLICATES = "n-duplicates"
    SEED_IGNORED = "seed-ignored"
    TOOL_IDS_REUSED = "tool-ids-reused"
    BROKEN_SCHEMA = "broken-schema"
    CROSSED_ANSWERS = "crossed-answers"


@dataclass(frozen=True)
class Expectation:
    """``tier`` is the lowest that must fail, ``case`` the one of its cases that is meant to see it; ``profile`` is the
    smallest that suffices, ``needs`` what it takes.

    ``proxied`` faults are done by a proxy in front of a server that has none, the others by the toy server itself.
    """

    tier: int
    case: str
    what: str
    profile: str = "quick"
    needs: str = ""
    proxied: bool = False


EXPECTED: dict[Fault, Expectation] = {
    Fault.DROPPED_TOKEN: Expectation(
        0, "contract/completion-streams-the-same-text[words]", "a stream loses its fifth token"
    ),
    Fault.DUPLICATED_TOKEN: Expectation(
        0, "contract/completion-streams-the-same-text[words]", "a stream has its fifth token twice"
    ),
    Fault.TRUNCATED_ARGUMENTS: Expectation(
        0, "contract/named-tool-call", "tool arguments lack their last two characters"
    ),
    Fault.WRONG_USAGE: Expectation(0, "contract/usage-adds-up", "completion tokens are counted one too few"),
    Fault.WRONG_TEMPLATE: Expectation(
        0,
        "contract/prompt-tokens-are-those-of-the-baseline[with-system]",
        "system messages are left out of the prompt",
        needs="checkpoint or baseline",
    ),
    Fault.LEAKED_STREAM: Expectation(
        0, "contract/cancelled-stream-is-freed", "a request runs on after its client has gone"
    ),
    Fault.STALE_PREFIX: Expectation(
        1, "lossless/kl-of-cold-cache", "a page is found by its own tokens, whatever came before it"
    ),
    Fault.CORRUPT_TIER: Expectation(1, "lossless/kl-of-tier-hit", "KV that comes back from the host tier is wrong"),
    Fault.WRONG_BONUS: Expectation(
        1, "lossless/greedy-tokens-are-the-models-own", "every fourth token comes from the logits of another position"
    ),
    Fault.ACCEPTS_WRONG_1_PERCENT: Expectation(
        1, "lossless/greedy-tokens-are-the-models-own", "1% of the tokens are a wrong draft, accepted"
    ),
    Fault.ACCEPTS_WRONG_01_PERCENT: Expectation(
        1, "lossless/greedy-tokens-are-the-models-own", "0.1% of the tokens are a wrong draft, accepted", "full"
    ),
    Fault.GREEDY_SAMPLING: Expectation(
        1,
        "lossless/samples-follow-the-models-distribution",
        "at temperature 1 every fourth token is the likeliest, not drawn",
    ),
    Fault.FP8_NOISE: Expectation(
        1, "lossless/kl-against-baseline", "logits are off as with FP8 KV (0.12 standard deviation)", needs="baseline"
    ),
    Fault.INT4_NOISE: Expectation(
        1, "lossless/kl-against-baseline", "logits are off as with INT4 weights (0.35)", needs="baseline"
    ),
    Fault.LOST_NEEDLE: Expectation(
        2, "lossy/long-context-retrieval", "needles are not found in more than 900 tokens", needs="baseline"
    ),
    Fault.STALE_TURN: Expectation(
        1, "lossless/kl-of-sessions-that-begin-alike", "sessions that begin alike get each other's later pages"
    ),
    Fault.BATCH_KERNEL: Expectation(
        1, "lossless/kl-of-cold-cache", "logits are off (1.0) where more than one request is decoded"
    ),
    Fault.COLD_DRAFTS: Expectation(
        1, "lossless/acceptance-length-survives-a-prefix-hit", "after a prefix hit no draft is accepted"
    ),
    Fault.STREAM_USAGE: Expectation(
        0, "contract/streamed-usage-is-the-same[completion]", "a stream's usage counts one token too many", proxied=True
    ),
    Fault.LEAKED_STOP: Expectation(
        0, "contract/stop-ends-the-text[completion]", "the stop string is part of the text", proxied=True
    ),
    Fault.SHIFTED_LOGPROBS: Expectation(
        0, "contract/logprobs-belong-to-the-text", "each token has its neighbour's log probability", proxied=True
    ),
    Fault.N_DUPLICATES: Expectation(
        0, "contract/n-gives-n-choices[completion]", "n choices are one choice n times", proxied=True
    ),
    Fault.SEED_IGNORED: Expectation(
        0, "contract/seed-repeats-a-sample[completion]", "the seed is not looked at", proxied=True
    ),
    Fault.TOOL_IDS_REUSED: Expectation(
        0, "contract/tool-call-ids-are-new", "the next tool call of a conversation has the id of the last", proxied=True
    ),
    Fault.BROKEN_SCHEMA: Expectation(
        0, "contract/schema-is-kept-every-time", "one JSON answer in twenty breaks its schema", proxied=True
    ),
    Fault.CROSSED_ANSWERS: Expectation(
        0,
        "contract/requests-do-not-leak-into-each-other",
        "one answer in fifty is that of another request",
        proxied=True,
    ),
}
