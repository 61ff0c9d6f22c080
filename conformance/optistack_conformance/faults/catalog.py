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


@dataclass(frozen=True)
class Expectation:
    """``tier`` is the lowest that must fail, ``profile`` the smallest that suffices, ``needs`` what it takes."""

    tier: int
    what: str
    profile: str = "quick"
    needs: str = ""


EXPECTED: dict[Fault, Expectation] = {
    Fault.DROPPED_TOKEN: Expectation(0, "a stream loses its fifth token"),
    Fault.DUPLICATED_TOKEN: Expectation(0, "a stream has its fifth token twice"),
    Fault.TRUNCATED_ARGUMENTS: Expectation(0, "tool arguments lack their last two characters"),
    Fault.WRONG_USAGE: Expectation(0, "completion tokens are counted one too few"),
    Fault.WRONG_TEMPLATE: Expectation(0, "system messages are left out of the prompt", needs="checkpoint or baseline"),
    Fault.LEAKED_STREAM: Expectation(0, "a request runs on after its client has gone"),
    Fault.STALE_PREFIX: Expectation(1, "a page is found by its own tokens, whatever came before it"),
    Fault.CORRUPT_TIER: Expectation(1, "KV that comes back from the host tier is wrong"),
    Fault.WRONG_BONUS: Expectation(1, "every fourth token comes from the logits of another position"),
    Fault.ACCEPTS_WRONG_1_PERCENT: Expectation(1, "1% of the tokens are a wrong draft, accepted"),
    Fault.ACCEPTS_WRONG_01_PERCENT: Expectation(1, "0.1% of the tokens are a wrong draft, accepted", "full"),
    Fault.GREEDY_SAMPLING: Expectation(1, "at temperature 1 every fourth token is the likeliest, not drawn"),
    Fault.FP8_NOISE: Expectation(1, "logits are off as with FP8 KV (0.12 standard deviation)", needs="baseline"),
    Fault.INT4_NOISE: Expectation(1, "logits are off as with INT4 weights (0.35)", needs="baseline"),
    Fault.LOST_NEEDLE: Expectation(2, "needles are not found in more than 900 tokens", needs="baseline"),
}
