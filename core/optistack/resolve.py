"""Resolve a stack: call the plugins' domain hooks in order and merge what they say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from optistack.context import PlanContext
from optistack.errors import InputError, nearest
from optistack.host import Host, Plugin
from optistack.settings.domains import (
    CacheTier,
    KVLayout,
    Routing,
    Settings,
    Speculation,
    WeightQuantization,
)
from optistack.settings.resolved import Contribution, ResolvedStack, combine

ONE_ANSWER: tuple[tuple[str, type[Settings]], ...] = (
    ("optistack_quantize_weights", WeightQuantization),
    ("optistack_lay_out_kv", KVLayout),
    ("optistack_speculate", Speculation),
)
"""Domain hooks with one answer, in the order in which they are called. Tiers and routing follow."""


def parse_options(plugin: Plugin, given: dict[str, Any]) -> Any:
    """``given`` as an instance of the plugin's option model.

    Raises InputError that names the option, the plugin and the nearest option it has.
    """
    try:
        return plugin.info.read(given)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            hint = nearest(path, plugin.info.options.model_fields)
            raise InputError(f"Plugin {plugin.name} has no option {path!r}.", fix=hint) from error
        raise InputError(f"Option {path} of plugin {plugin.name}: {first['msg']}.") from error


def resolve(
    host: Host,
    plugins: Sequence[Plugin],
    context: PlanContext,
    options: dict[str, Any],
    base: Iterable[Contribution],
) -> ResolvedStack:
    """The merged settings of ``plugins``.

    ``context``  for the first hook; ``options`` and ``so_far`` are filled in for each call
    ``options``  parsed options by plugin name
    ``base``     opinions that are there before any plugin speaks: the stack file's, the adapter's suggestions

    Raises PlanRefusedError where opinions contradict each other or a plugin refuses.
    """
    said = list(base)
    so_far = combine(said)

    def ask(plugin: Plugin, hook: str, expected: type[Any], many: bool) -> None:
        nonlocal so_far
        ctx = dataclasses.replace(context, options=options[plugin.name], so_far=so_far)
        if many:
            answers = list(host.call_many(plugin, hook, expected, ctx=ctx))
        else:
            answer = host.call(plugin, hook, expected, ctx=ctx)
            answers = [] if answer is None else [answer]
        if answers:
            said.extend(Contribution(plugin.name, answer) for answer in answers)
            so_far = combine(said)

    for hook, expected in ONE_ANSWER:
        for plugin in plugins:
            ask(plugin, hook, expected, many=False)
    for plugin in plugins:
        ask(plugin, "optistack_tier_cache", CacheTier, many=True)
    for plugin in plugins:
        ask(plugin, "optistack_route", Routing, many=False)
    return so_far
