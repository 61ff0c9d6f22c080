"""A launch's arguments against the flags that the installed engine has."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optistack.engines.probe import EngineProbe, FlagInfo

NEAR = 0.8
"""How alike a flag must be to be suggested: all begin with two dashes, and many share a word."""

_NEGATIVE_NUMBER = re.compile(r"^-\d+$|^-\d*\.\d+$")


@dataclass(frozen=True)
class FlagProblem:
    """``flag`` as it was written, one sentence on what is wrong with it, and what to write instead if that is known."""

    flag: str
    message: str
    fix: str = ""


def check_flags(arguments: Sequence[str], probe: EngineProbe) -> list[FlagProblem]:
    """What the engine's parser would refuse, or silently take for something else, in ``arguments``.

    ``arguments`` are those after the module's name. An abbreviated flag is a problem even where argparse would take
    it, since the next release may have two flags that begin so. Values are checked for number and choices, not for
    type.
    """
    spelled = {name: info for flag, info in probe.flags.items() for name in (flag, *info.aliases)}
    problems = []
    for written, values in _grouped(arguments, spelled):
        name = _canonical(written, probe)
        info = spelled.get(name)
        if info is None:
            problems.append(_unknown(written, name, spelled, probe))
        elif text := _bad_values(info, values, whole=name == written.replace("_", "-")):
            problems.append(FlagProblem(written, f"{written} of {_engine(probe)} {text}."))
    return problems


def _grouped(arguments: Sequence[str], spelled: dict[str, FlagInfo]) -> Iterator[tuple[str, list[str]]]:
    """Each flag as written, with the values that follow it; what stands before the first flag is positional."""
    current: tuple[str, list[str]] | None = None
    for argument in arguments:
        if not argument.startswith("-") or argument == "-" or _NEGATIVE_NUMBER.match(argument):
            if current:
                current[1].append(argument)
            continue
        if current:
            yield current
        name, equals, value = argument.partition("=")
        if " " in name:
            name, equals, value = argument, "", ""  # a flag and its value in one word: told whole
        if not argument.startswith("--") and name not in spelled and name[:2] in spelled:
            name, equals, value = argument[:2], "=", argument[2:].removeprefix("=")
        current = (name, [value] if equals else [])
    if current:
        yield current


def _canonical(written: str, probe: EngineProbe) -> str:
    if probe.backend != "vllm":
        return written
    # vLLM takes underscores for hyphens, and --speculative-config.method for one key of a JSON value.
    dashes = re.match(r"-*", written)
    start = dashes.end() if dashes else 0
    return (written[:start] + written[start:].replace("_", "-")).partition(".")[0]


def _bad_values(info: FlagInfo, values: Sequence[str], *, whole: bool) -> str:
    if not info.takes_value:
        return f"takes no value, and has {values[0]!r}" if values else ""
    if len(values) < info.min_values:
        return "needs a value" if info.min_values == 1 else f"needs {info.min_values} values, and has {len(values)}"
    if info.max_values is not None and len(values) > info.max_values:
        return f"takes {info.max_values} value{'s' * (info.max_values > 1)}, and has {' '.join(values)!r}"
    wrong = [value for value in values if whole and info.choices is not None and value not in info.choices]
    return f"does not take {wrong[0]!r}; it takes {', '.join(info.choices or ())}" if wrong else ""


def _unknown(written: str, name: str, spelled: dict[str, FlagInfo], probe: EngineProbe) -> FlagProblem:
    if " " in written:
        flag, value = written.split(" ", 1)
        return FlagProblem(
            written,
            f"{written!r} is one word, and {_engine(probe)} has no flag with a space.",
            fix=f"Write --engine-arg={shlex.quote(f'{flag}={value.strip()}')}.",
        )
    longer = sorted(known for known in spelled if known.startswith(name)) if name.startswith("--") else []
    if longer:
        return FlagProblem(
            written,
            f"{_engine(probe)} has no flag {written}, only longer ones.",
            fix=f"Write {' or '.join(longer[:4])}.",
        )
    near = difflib.get_close_matches(name, spelled, n=1, cutoff=NEAR) if len(name) > 3 else []
    fix = f"Did you mean {near[0]!r}?" if near else f"Its own --help lists its {len(probe.flags)} flags."
    return FlagProblem(written, f"{_engine(probe)} has no flag {written}.", fix=fix)


def _engine(probe: EngineProbe) -> str:
    return f"{probe.distribution} {probe.version}"
