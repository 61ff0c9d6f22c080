"""``Receipt``: for each promise of a plan, what was asked, what the engine says, and the proof."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Status(StrEnum):
    """``unproven``: the engine gives no evidence either way. It never counts as a pass."""

    PASS = "pass"
    FAIL = "fail"
    UNPROVEN = "unproven"


class Observed(BaseModel):
    """What the engine says about one setting, in optistack's words, and where it says so.

    ``proof`` is a field, metric or log line that a reader can look up: ``vllm:cache_config_info{cache_dtype="fp8"}``.
    ``value`` ``None`` with a ``proof`` tells why the engine gives no evidence.
    ``whole_device``: bytes by which a device's free memory changed, whoever took them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: str | int | float | bool | None
    proof: str
    whole_device: bool = False


class CheckResult(BaseModel):
    """One line of a receipt.

    ``id``     stable: a setting's path (``kv.dtype``) or ``<plugin>/<probe>`` (``dflash/drafts-move``)
    ``promised_by``  the plugin, ``plan`` or ``stack``
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    promised_by: str
    asked: str
    engine_says: str
    proof: str
    status: Status
    why: str = ""


class Dropped(BaseModel):
    """A plugin that ``--allow-degraded`` left out of the plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plugin: str
    rule: str
    message: str


class Receipt(BaseModel):
    """The result of verifying one engine against its plan, or with ``replica`` ``None`` the front before them; then
    ``backend`` and ``engine_version`` are those of the front's plugin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stack: str
    plan_hash: str
    backend: str
    engine_version: str
    endpoint: str
    replica: int | None = 0
    verified_at: str
    results: tuple[CheckResult, ...]
    dropped: tuple[Dropped, ...] = ()

    @property
    def passed(self) -> bool:
        """True when something was proven and nothing failed.

        Unproven promises are shown and counted, and do not fail the receipt; one that proves nothing at all is of
        something else than the engine.
        """
        return self.count(Status.PASS) > 0 and self.count(Status.FAIL) == 0

    def count(self, status: Status) -> int:
        return sum(result.status is status for result in self.results)
