"""A setting is an opinion with a reason, and opinions are merged, never overwritten.

A plugin does not say "page size 64"; it says "page size 64, because the MLA kernel takes pages of 32 or 64". Other
plugins may have an opinion about the same setting. The merge intersects constraints, and two different wishes are an
error that names both plugins: there is no last-wins anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

from optistack.errors import PlanRefusedError

T = TypeVar("T")


class Origin(BaseModel):
    """Who holds an opinion, why, and where the fact behind it comes from (a file, a link, a measurement)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    said: str = ""
    why: str = ""
    reference: str = ""


class Value(BaseModel, Generic[T]):
    """One opinion about one setting, or the merge of several.

    ``value``        what it should be; ``None`` when the opinion only constrains
    ``default``      true when ``value`` is a suggestion that yields to anybody's firm wish
    ``fallback``     set by the host on opinions of the plan and the adapter, which yield to any plugin's; on a merged
                     value: nobody else had a wish
    ``one_of``       allowed values (empty: all)
    ``multiple_of``  the value must be a whole multiple of this
    ``at_least``, ``at_most``  inclusive bounds
    ``origins``      filled in by the host; plugins set ``why`` and ``reference`` instead

    A bare value is accepted wherever a ``Value`` is expected: ``KVLayout(dtype="fp8_e4m3")``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: T | None = None
    default: bool = False
    fallback: bool = False
    one_of: tuple[T, ...] = ()
    multiple_of: int | None = None
    at_least: float | None = None
    at_most: float | None = None
    why: str = ""
    reference: str = ""
    origins: tuple[Origin, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _accept_bare(cls, data: Any) -> Any:
        if isinstance(data, Value | dict):
            return data
        return {"value": data}

    @property
    def is_set(self) -> bool:
        return self.value is not None

    @property
    def has_opinion(self) -> bool:
        bounds = (self.multiple_of, self.at_least, self.at_most)
        return self.is_set or bool(self.one_of) or any(bound is not None for bound in bounds)

    def allows(self, candidate: Any) -> bool:
        """Whether ``candidate`` satisfies the constraints (not whether it equals ``value``)."""
        if self.one_of and candidate not in self.one_of:
            return False
        if self.multiple_of is not None and candidate % self.multiple_of:
            return False
        if self.at_least is not None and candidate < self.at_least:
            return False
        return self.at_most is None or candidate <= self.at_most

    def describe(self) -> str:
        """The opinion in a few words: ``64``, ``default 64``, ``one of 32, 64``, ``multiple of 16, at most 64``."""
        parts = []
        if self.is_set:
            parts.append(f"default {self.value}" if self.default else f"{self.value}")
        if self.one_of:
            parts.append("one of " + ", ".join(str(choice) for choice in self.one_of))
        if self.multiple_of is not None:
            parts.append(f"multiple of {self.multiple_of}")
        if self.at_least is not None:
            parts.append(f"at least {self.at_least:g}")
        if self.at_most is not None:
            parts.append(f"at most {self.at_most:g}")
        return ", ".join(parts)

    @property
    def wishes(self) -> tuple[Origin, ...]:
        """The origins that decided the value; all of them when it follows from constraints alone."""
        said = (str(self.value), f"default {self.value}")
        wished = tuple(o for o in self.origins if o.said in said or o.said.startswith(tuple(f"{s}, " for s in said)))
        return wished or self.origins

    def from_source(self, source: str, *, fallback: bool = False) -> Value[T]:
        """The same opinion, signed."""
        origin = Origin(source=source, said=self.describe(), why=self.why, reference=self.reference)
        return self.model_copy(update={"origins": (origin,), "fallback": fallback})


UNSET: Value[Any] = Value()


def choose(value: T, *, why: str = "", reference: str = "") -> Value[T]:
    """A firm wish. Two different firm wishes for one setting refuse the plan."""
    return Value(value=value, why=why, reference=reference)


def suggest(value: T, *, why: str = "", reference: str = "") -> Value[T]:
    """A default: used unless somebody wishes otherwise or a constraint forbids it."""
    return Value(value=value, default=True, why=why, reference=reference)


def constrain(
    *,
    one_of: Iterable[T] = (),
    multiple_of: int | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    why: str = "",
    reference: str = "",
) -> Value[T]:
    """A constraint without a wish; the value comes from somebody else or from the engine's default."""
    return Value(
        one_of=tuple(one_of), multiple_of=multiple_of, at_least=at_least, at_most=at_most, why=why, reference=reference
    )


def merge(setting: str, opinions: Iterable[Value[Any]]) -> Value[Any]:
    """Merge signed opinions about ``setting``. The result does not depend on their order.

    Raises PlanRefusedError, naming every plugin involved, when two firm wishes differ, when no value can satisfy all
    constraints, or when the wish is outside them. Two different suggestions are also an error: guessing between
    plugins is how silent overrides begin.
    """
    held = [opinion for opinion in opinions if opinion.has_opinion]
    if not held:
        return UNSET
    origins = tuple(sorted({o for opinion in held for o in opinion.origins}, key=lambda o: (o.source, o.said)))
    constraints = _intersect(setting, held, origins)
    wish, is_default, fell_back = _wish(setting, held, constraints)
    if wish is not None and not constraints.allows(wish):
        sources = sorted({origin.source for origin in origins})
        raise PlanRefusedError(
            f"{setting} = {wish} is not {constraints.describe()}: {_who(origins)}.",
            fix="Change the option of one of them, or leave one out."
            if len(sources) > 1
            else f"Change the option of {sources[0]}.",
        )
    return constraints.model_copy(
        update={"value": wish, "default": is_default, "fallback": fell_back, "origins": origins}
    )


def _wish(setting: str, held: list[Value[Any]], constraints: Value[Any]) -> tuple[Any, bool, bool]:
    """The value that is wanted, whether it is a default, and whether it is a fallback: a firm wish, else a plugin's
    suggestion that fits, else the fallback, else the only value that the constraints leave."""
    firm = [opinion for opinion in held if opinion.is_set and not opinion.default and not opinion.fallback]
    if firm:
        _agree(setting, firm)
        return firm[0].value, False, False
    fitting = [opinion for opinion in held if opinion.is_set and constraints.allows(opinion.value)]
    for fallback in (False, True):
        candidates = [opinion for opinion in fitting if opinion.fallback is fallback]
        if candidates:
            _agree(setting, candidates)
            return candidates[0].value, True, fallback
    return (constraints.one_of[0] if len(constraints.one_of) == 1 else None), False, False


def _intersect(setting: str, held: list[Value[Any]], origins: tuple[Origin, ...]) -> Value[Any]:
    choices: tuple[Any, ...] = ()
    for opinion in held:
        if opinion.one_of:
            choices = tuple(c for c in choices if c in opinion.one_of) if choices else opinion.one_of
            if not choices:
                raise PlanRefusedError(
                    f"No value of {setting} suits all plugins: {_who(origins)}.", fix="Leave one of them out."
                )
    multiples = [opinion.multiple_of for opinion in held if opinion.multiple_of is not None]
    lows = [opinion.at_least for opinion in held if opinion.at_least is not None]
    highs = [opinion.at_most for opinion in held if opinion.at_most is not None]
    merged: Value[Any] = Value(
        multiple_of=math.lcm(*multiples) if multiples else None,
        at_least=max(lows) if lows else None,
        at_most=min(highs) if highs else None,
    )
    empty_range = merged.at_least is not None and merged.at_most is not None and merged.at_least > merged.at_most
    allowed = tuple(sorted((c for c in choices if merged.allows(c)), key=_sort_key))
    if empty_range or (choices and not allowed):
        raise PlanRefusedError(
            f"No value of {setting} suits all plugins: {_who(origins)}.", fix="Leave one of them out."
        )
    return merged.model_copy(update={"one_of": allowed})


def _agree(setting: str, opinions: list[Value[Any]]) -> None:
    first = next(iter(opinions), None)
    for other in opinions[1:]:
        if first is not None and other.value != first.value:
            raise PlanRefusedError(
                f"Two plugins disagree on {setting}: {_who((*first.origins, *other.origins))}.",
                fix="Change the option of one of them, or leave one out.",
            )


def _sort_key(choice: Any) -> tuple[bool, Any]:
    return (isinstance(choice, str), choice)


def _who(origins: Iterable[Origin]) -> str:
    said = (f"{o.source} says {o.said}" + (f" ({o.why})" if o.why else "") for o in origins)
    return "; ".join(sorted(said))
