"""What the toy model says to the tasks of the evals: most references, and now and then something wrong."""

from __future__ import annotations

import hashlib
import re

from optistack_conformance.evals.items import load_items
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.selection import PROFILES

NEEDLE_LOST_BEYOND_TOKENS = 900
CHARACTERS_A_TOKEN = 5


class Script:
    """Answers by prompt. ``skill`` is the share of the items that are answered rightly, the same ones always."""

    def __init__(self, fault: Fault, skill: float) -> None:
        self._fault = fault
        self._answers: dict[str, str] = {}
        for item in (item for profile in PROFILES.values() for item in load_items(profile)):
            right = _share(item.id) < skill
            if fault is Fault.LOST_NEEDLE and item.context_tokens > NEEDLE_LOST_BEYOND_TOKENS:
                right = False
            self._answers[item.prompt] = item.reference if right else " I do not know.\n"

    def answer(self, prompt: str) -> bytes | None:
        """The answer to ``prompt``; None when it is no task, or (copying in a batch) part of one."""
        found = self._answers.get(prompt) or self._needle(prompt)
        return found.encode() + b"\n" if found is not None else None

    def _needle(self, prompt: str) -> str | None:
        """The answer to a needle that is in no profile: what the prompt itself says."""
        asked = re.search(r"Answer: The secret code of the (\w+) is$", prompt)
        said = re.search(rf"The secret code of the {asked[1]} is (\d+)\.", prompt) if asked else None
        if said is None:
            return None
        lost = self._fault is Fault.LOST_NEEDLE and len(prompt) > NEEDLE_LOST_BEYOND_TOKENS * CHARACTERS_A_TOKEN
        return " I do not know." if lost else f" {said[1]}."


def _share(item_id: str) -> float:
    return int.from_bytes(hashlib.sha256(item_id.encode()).digest()[:4], "big") / 2**32
