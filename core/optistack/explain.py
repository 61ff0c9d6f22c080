"""Explain a word of a plan: a rule, a setting, an option of a plugin, a flag or a variable of the launch."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from optistack.backend import backend_names, get_backend
from optistack.engines.environment import installed_engines
from optistack.engines.snapshots import snapshot_versions
from optistack.errors import InputError
from optistack.host import Plugin
from optistack.launch import LaunchArgument, LaunchVariable
from optistack.plan.plan import Plan
from optistack.receipt_lines import RECEIPT_LINES, receipt_lines
from optistack.rules import Rule
from optistack.secrets import shown
from optistack.settings import CacheTier, KVLayout, Routing, Serving, Speculation, Value, WeightQuantization
from optistack.stack.spec import ServingSection, StackSpec

SECTIONS: dict[str, type[BaseModel]] = {
    "serving": Serving,
    "quantization": WeightQuantization,
    "kv": KVLayout,
    "speculation": Speculation,
    "tiers.2": CacheTier,
    "tiers.3": CacheTier,
    "routing": Routing,
}

ENGINE_KEYS = tuple(f"serving.{name}" for name in ServingSection.model_fields if name not in Serving.model_fields)
"""Keys of the stack file's section serving that no plugin has an opinion on."""


class Explanation(BaseModel):
    """``facts`` are pairs of a label and a text, in the order in which one reads them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: str
    kind: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Known:
    """What can be explained. ``rules`` come with their source; without a ``plan`` there are no flags."""

    rules: Sequence[tuple[str, Rule]]
    plugins: Sequence[Plugin]
    plan: Plan | None = None


def explain(topic: str, known: Known) -> Explanation:
    """What ``topic`` is, and what the plan does with it. Raises InputError with the nearest name."""
    for source, rule in known.rules:
        if rule.id == topic:
            return Explanation(topic=topic, kind="rule", facts=tuple(_rule(source, rule)))
    if topic in setting_paths():
        return Explanation(topic=topic, kind="setting", facts=tuple(_setting(topic, known.plan)))
    for plugin in known.plugins:
        option = topic.removeprefix(f"{plugin.name}.")
        if option != topic and option in plugin.info.options.model_fields:
            return Explanation(topic=topic, kind="option", facts=tuple(_option(plugin, option, known.plan)))
    for plugin in known.plugins:
        if topic == plugin.name:
            return Explanation(topic=topic, kind="plugin", facts=tuple(_plugin(plugin, known)))
        if topic in (lines := receipt_lines(plugin)):
            facts = (("passes when", lines[topic]), ("belongs to", f"plugin {plugin.name} {plugin.info.version}"))
            return Explanation(topic=topic, kind="receipt line", facts=facts)
    if topic in backend_names():
        return Explanation(topic=topic, kind="engine", facts=tuple(_engine(topic, known.plan)))
    if topic in ENGINE_KEYS:
        meaning = ServingSection.model_fields[topic.partition(".")[2]].description or ""
        return Explanation(topic=topic, kind="key of the stack file", facts=(("means", meaning),))
    if topic in StackSpec.model_fields:
        return Explanation(topic=topic, kind="key of the stack file", facts=tuple(_section(topic)))
    if topic in RECEIPT_LINES:
        return Explanation(topic=topic, kind="receipt line", facts=(("passes when", RECEIPT_LINES[topic]),))
    parts = _parts(known.plan)
    said = [part for name, part in parts if name == topic]
    if said:
        kind = "flag" if isinstance(said[0], LaunchArgument) else "variable"
        return Explanation(topic=topic, kind=kind, facts=tuple(_part(said, known.plan)))
    if topic.startswith("--") and known.plan is None:
        raise InputError(f"{topic} can be explained only for a stack.", fix="Give the stack file with --stack FILE.")
    names = [*(rule.id for _, rule in known.rules), *setting_paths(), *(name for name, _ in parts)]
    names += [
        *RECEIPT_LINES,
        *backend_names(),
        *ENGINE_KEYS,
        *StackSpec.model_fields,
        *(plugin.name for plugin in known.plugins),
    ]
    names += [line for plugin in known.plugins for line in receipt_lines(plugin)]
    names += [f"{plugin.name}.{option}" for plugin in known.plugins for option in plugin.info.options.model_fields]
    raise InputError(
        f"{topic!r} is no rule, setting, engine, plugin, option, receipt line or flag of the plan.",
        fix=_near(topic, names) or "`optistack plan` shows them all.",
    )


def _plugin(plugin: Plugin, known: Known) -> Iterator[tuple[str, str]]:
    yield "does", plugin.info.summary
    yield "domain", plugin.info.domain.value
    yield "brought by", plugin.distribution
    yield "options", ", ".join(f"{plugin.name}.{name}" for name in plugin.info.options.model_fields) or "none"
    rules = [rule.id for source, rule in known.rules if source == plugin.name]
    if rules:
        yield "rules", ", ".join(rules)
    if lines := receipt_lines(plugin):
        yield "receipt lines", ", ".join(lines)
    if known.plan is not None:
        used = any(use.name == plugin.name for use in known.plan.plugins)
        yield "in this plan", "yes" if used else "no"


def setting_paths() -> list[str]:
    """Every setting that a plugin can have an opinion on."""
    return [
        f"{section}.{name}"
        for section, model in SECTIONS.items()
        for name, info in model.model_fields.items()
        if inspect.isclass(info.annotation) and issubclass(info.annotation, Value)
    ]


def _near(topic: str, names: Iterable[str]) -> str:
    """A suggestion where one is near; no list of a hundred names, and none that only begins alike."""
    near = difflib.get_close_matches(topic, list(names), n=1, cutoff=0.75)
    return f"Did you mean {near[0]!r}?" if near else ""


def _section(name: str) -> Iterator[tuple[str, str]]:
    info = StackSpec.model_fields[name]
    section = info.annotation
    if isinstance(section, type) and issubclass(section, BaseModel):
        yield "means", inspect.getdoc(section) or ""
        yield "keys", ", ".join(section.model_fields)
    else:
        yield "means", info.description or ""


def _engine(name: str, plan: Plan | None) -> Iterator[tuple[str, str]]:
    backend = get_backend(name)
    yield "supported", backend.supported
    yield "planned for", f"{backend.default_version} where none is installed and the stack pins none"
    if known := snapshot_versions(backend.snapshots, name):
        yield "flags known of", ", ".join(known)
    installed = [f"{e.name} {e.version}" for e in installed_engines() if e.backend == name]
    yield "installed here", ", ".join(installed) or f"none (`optistack engine install {name}`)"
    if plan is not None and plan.engine.backend == name:
        yield "in this plan", plan.engine.version


def _rule(source: str, rule: Rule) -> Iterator[tuple[str, str]]:
    yield "severity", rule.severity.value
    yield "says", rule.message.replace("{detail}", "…")
    if rule.fix:
        yield "fix", rule.fix
    engines = ", ".join(rule.backends) or "any engine"
    where = [f"{engines} {rule.versions}".strip(), f"SM {', '.join(map(str, rule.sm))}" if rule.sm else ""]
    yield "holds for", ", ".join(part for part in where if part)
    yield "known from", f"{rule.evidence.value}: {rule.upstream}" if rule.upstream else rule.evidence.value
    yield "belongs to", source
    if rule.domain is not None:
        yield "--allow-degraded", f"leaves out plugins of the domain {rule.domain.value}"


def _setting(path: str, plan: Plan | None) -> Iterator[tuple[str, str]]:
    section, _, name = path.rpartition(".")
    meaning = _documented(SECTIONS[section], name)
    if section == "serving" and name in ServingSection.model_fields:
        meaning = meaning or ServingSection.model_fields[name].description or ""
    if meaning:
        yield "means", meaning
    yield "takes", _taken(SECTIONS[section].model_fields[name].annotation)
    if plan is None:
        yield "in a plan", "give --stack FILE to see its value and which plugins set it"
        return
    value = plan.stack.get(path)
    yield "in this plan", value.describe() if value.has_opinion else "left to the engine"
    for origin in value.origins:
        yield origin.source, _reason(origin.said, origin.why, origin.reference)
    carriers = [name for name, part in _parts(plan) if part.setting == path]
    if carriers:
        yield "carried by", ", ".join(carriers)
    yield from (("rule that fired", f"{f.rule}: {f.message}") for f in plan.findings if path in f"{f.message} {f.fix}")


def _taken(annotation: Any) -> str:
    """What a ``Value[...]`` holds: ``int``, ``str``, ``dict[str, Any]``; allowed words as they are."""
    held = annotation.__pydantic_generic_metadata__["args"][0]
    if get_origin(held) is Annotated:  # a bound on a number, as in PositiveInt
        held = get_args(held)[0]
    if get_origin(held) is Literal:
        return ", ".join(map(str, get_args(held)))
    return held.__name__ if type(held) is type else str(held).replace("typing.", "")


def _option(plugin: Plugin, option: str, plan: Plan | None) -> Iterator[tuple[str, str]]:
    info = plugin.info.options.model_fields[option]
    if info.description:
        yield "means", info.description
    yield (
        "default",
        "none: it must be given" if info.is_required() else str(info.get_default(call_default_factory=True)),
    )
    if plan is not None and option in plan.options_of(plugin.name):
        yield "in this plan", str(plan.options_of(plugin.name)[option])
    yield "belongs to", f"plugin {plugin.name} {plugin.info.version}"


def _part(parts: Iterable[LaunchArgument | LaunchVariable], plan: Plan | None) -> Iterator[tuple[str, str]]:
    for part in parts:
        name = part.flag if isinstance(part, LaunchArgument) else part.name
        yield "in this plan", shown(name, part.value) or "on"
        yield "set by", part.source
        if part.why or part.reference:
            yield "because", _reason("", part.why, part.reference)
        if part.setting:
            yield "carries", part.setting
            if plan is not None:
                yield from _setting(part.setting, plan)


def _parts(plan: Plan | None) -> list[tuple[str, LaunchArgument | LaunchVariable]]:
    if plan is None:
        return []
    launches = [plan.launches[0], *([plan.front] if plan.front else [])]
    return [
        *((argument.flag, argument) for launch in launches for argument in launch.arguments),
        *((variable.name, variable) for launch in launches for variable in launch.variables),
    ]


def _reason(said: str, why: str, reference: str) -> str:
    text = ": ".join(part for part in (said, why) if part)
    return f"{text} [{reference}]" if reference else text


def _documented(model: type[BaseModel], name: str) -> str:
    """What the class says about its field ``name``: the text behind it in lines like ````name``  meaning``."""
    text = inspect.getdoc(model) or ""
    for entry in re.split(r"\n(?=``)", text):
        head, gap, meaning = entry.partition("``  ")
        if gap and f"``{name}``" in f"{head}``":
            return " ".join(meaning.split("\n\n")[0].replace("``", "").split())
    return ""
