"""What else differs between results, beside what they measured: options, GPUs counted, the engine, the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from optistack_bench.result import Result
from optistack_bench.settings import Settings

OPTIONS = {"domains": "--domain", "context_tokens": "--context"}
"""Settings that are called otherwise on the command line."""


def differences(results: Mapping[str, Result]) -> list[str]:
    """A sentence for each difference of another result from the first. An option that an older result does not have is
    as by default."""
    (first_name, first), *others = ((name, dict(_told(result))) for name, result in results.items())
    return [
        f"{what}: {first.get(what, 'not given')} in {first_name}, {other.get(what, 'not given')} in {name}."
        for name, other in others
        for what in dict.fromkeys((*first, *other))
        if first.get(what) != other.get(what)
    ]


def _told(result: Result) -> Iterator[tuple[str, str]]:
    for key, value in {**Settings().as_json(), **result.settings}.items():
        option = OPTIONS.get(key, "--" + key.removesuffix("_s").replace("_", "-"))
        yield option, _word(value)
    servers = [point.server for point in result.points]
    if servers:
        yield "GPUs counted", _each(one.gpus for one in servers)
        yield "model", _each(one.model for one in servers)
        yield "engine", _each(f"{one.engine} {one.engine_version}" for one in servers)
    yield "machine", result.machine


def _word(value: object) -> str:
    if value is None:
        return "not given"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _each(values: Iterator[object]) -> str:
    return " and ".join(dict.fromkeys(map(str, values)))
