"""``ResolvedStack``: the merged settings of all plugins, one object for each domain, every value with its origins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from optistack.errors import PlanRefusedError
from optistack.settings.domains import (
    CacheTier,
    EngineArgument,
    KVLayout,
    MemoryCharge,
    Routing,
    Serving,
    Settings,
    Speculation,
    WeightQuantization,
)
from optistack.settings.values import Value, merge

D = TypeVar("D", bound=BaseModel)

Part = tuple[str, BaseModel, bool]

DOMAIN_FIELDS: dict[type[Settings], str] = {
    WeightQuantization: "quantization",
    KVLayout: "kv",
    Speculation: "speculation",
    Routing: "routing",
}


class ResolvedStack(BaseModel):
    """Settings after the merge. ``values()`` walks them with their paths, e.g. ``kv.dtype`` or ``tiers.2.backend``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    serving: Serving = Serving()
    quantization: WeightQuantization = WeightQuantization()
    kv: KVLayout = KVLayout()
    speculation: Speculation = Speculation()
    tiers: tuple[CacheTier, ...] = ()
    routing: Routing = Routing()
    charges: tuple[MemoryCharge, ...] = ()
    arguments: tuple[EngineArgument, ...] = ()

    def tier(self, level: int) -> CacheTier | None:
        return next((tier for tier in self.tiers if tier.level == level), None)

    def values(self) -> Iterator[tuple[str, Value[Any]]]:
        """Every setting that somebody has an opinion on."""
        for name in ("serving", "quantization", "kv", "speculation", "routing"):
            yield from _values(name, getattr(self, name))
        for tier in self.tiers:
            yield from _values(f"tiers.{tier.level}", tier)

    def get(self, path: str) -> Value[Any]:
        """The setting at ``path``; an unset value when nobody has an opinion on it."""
        return dict(self.values()).get(path, Value())


def _values(prefix: str, section: BaseModel) -> Iterator[tuple[str, Value[Any]]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Value) and value.has_opinion:
            yield f"{prefix}.{name}", value


class Contribution(NamedTuple):
    """What one source says. ``fallback`` is for the plan and the adapter, whose opinions yield to any plugin's."""

    source: str
    settings: Settings | Serving
    fallback: bool = False


def combine(contributions: Iterable[Contribution]) -> ResolvedStack:
    """Merge contributions into one stack.

    Raises PlanRefusedError, naming every source involved, where they contradict each other.
    """
    by_section: dict[str, list[Part]] = {name: [] for name in ("serving", *DOMAIN_FIELDS.values())}
    tiers: dict[int, list[Part]] = {}
    charges: list[MemoryCharge] = []
    arguments: list[EngineArgument] = []
    for source, settings, fallback in contributions:
        if isinstance(settings, Serving):
            by_section["serving"].append((source, settings, fallback))
            continue
        if settings.serving is not None:
            by_section["serving"].append((source, settings.serving, fallback))
        charges.extend(charge.model_copy(update={"source": source}) for charge in settings.charges)
        arguments.extend(argument.model_copy(update={"source": source}) for argument in settings.arguments)
        if isinstance(settings, CacheTier):
            tiers.setdefault(settings.level, []).append((source, settings, fallback))
        elif type(settings) in DOMAIN_FIELDS:
            by_section[DOMAIN_FIELDS[type(settings)]].append((source, settings, fallback))
    merged: dict[str, Any] = {
        "serving": _merge_section("serving", Serving, by_section["serving"]),
        "quantization": _merge_section("quantization", WeightQuantization, by_section["quantization"]),
        "kv": _merge_section("kv", KVLayout, by_section["kv"]),
        "speculation": _merge_section("speculation", Speculation, by_section["speculation"]),
        "routing": _merge_section("routing", Routing, by_section["routing"]),
    }
    for level in sorted(tiers):
        _check_level(level, tiers)
    merged["tiers"] = tuple(
        _merge_section(f"tiers.{level}", CacheTier, tiers[level], level=level) for level in sorted(tiers)
    )
    return ResolvedStack(charges=tuple(charges), arguments=_merge_arguments(arguments), **merged)


def _merge_section(path: str, kind: type[D], parts: list[Part], **fixed: Any) -> D:
    fields = [name for name, field in kind.model_fields.items() if name not in ("charges", "arguments", "serving")]
    merged = {}
    for name in fields:
        opinions = [
            opinion.from_source(source, fallback=fallback)
            for source, part, fallback in parts
            if isinstance(opinion := getattr(part, name), Value) and opinion.has_opinion
        ]
        if opinions:
            merged[name] = merge(f"{path}.{name}", opinions)
    return kind(**fixed, **merged)


def _check_level(level: int, tiers: dict[int, list[Part]]) -> None:
    if level == 3 and 2 not in tiers:
        sources = ", ".join(source for source, _, _ in tiers[level])
        raise PlanRefusedError(
            f"{sources} asks for a storage tier without a host tier below it.",
            fix="Both engines stage storage through host RAM: give the host tier a size.",
        )


def _merge_arguments(arguments: list[EngineArgument]) -> tuple[EngineArgument, ...]:
    seen: dict[tuple[str, str, str], EngineArgument] = {}
    for argument in arguments:
        key = (argument.backend, argument.name, argument.versions)
        other = seen.setdefault(key, argument)
        if other.value != argument.value:
            raise PlanRefusedError(
                f"Two plugins disagree on {argument.name}: {other.source} says {other.value}, "
                f"{argument.source} says {argument.value}.",
                fix="Change the option of one of them, or leave one out.",
            )
    return tuple(seen.values())
