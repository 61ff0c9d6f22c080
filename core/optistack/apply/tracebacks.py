"""Read an engine's log: whose line it is, what it says, and the Python exceptions that were printed into it.

The formats, as printed by vLLM 0.26 to 0.33 and SGLang 0.5.17 to 0.5.23::

    (EngineCore pid=41) ERROR 11-29 23:00:27 [core.py:1510] ValueError: ...    vLLM, every line of a message
    (EngineCore pid=41) ValueError: ...                                       vLLM 0.26, what is not logged
    [2026-11-29 23:00:27 TP0] Scheduler hit an exception: Traceback ...       SGLang, first line of a message only
    [rank0]: ValueError: ...                                                  torch, an exception nobody caught
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(
    r"(?:\((?P<process>[^()]* pid=\d+)\) ?)?"
    r"(?P<logged>(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]*:\d+\] ?)?"
    r"(?P<stamp>\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?[^\]]*\] ?)?"
    r"(?:\[(?P<rank>rank\d+)\]: ?)?"
)
_START = "Traceback (most recent call last):"
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*(?P<type>[A-Za-z_]\w*)(?::\s?(?P<message>.*))?$")
_FRAME = re.compile(r'\s+File "(?:.*/)?(?P<file>[^/"]+)", line (?P<line>\d+)')
# What may follow an exception without being the rest of its message: a warning, torch's and NCCL's own log lines.
_UNRELATED = re.compile(r"\S+:\d+: \w*Warning|\[[WEIF]\d{4} |usage: |Process [\w-]+:$|INFO:|ERROR:|WARNING:")
_MESSAGE_LINES = 8
_MESSAGE_CHARACTERS = 500
# Beyond these it is no log that anybody reads, and the supervisor has other things to do.
_LINE_CHARACTERS = 4000
_LINES = 100_000


@dataclass(frozen=True)
class Line:
    """``source`` is the process as the log names it; ``header`` is level, time and place, as far as they are given."""

    source: str
    header: str
    text: str


@dataclass(frozen=True)
class Raised:
    """An exception as printed. ``type`` is without its module; ``head`` is the first line of the message."""

    type: str
    message: str
    head: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True)
class Chain:
    """Exceptions that led to each other, the first one first, and the line that introduces the traceback."""

    announcement: str
    raised: tuple[Raised, ...]


def parse_line(line: str) -> Line:
    line = _ANSI.sub("", line[:_LINE_CHARACTERS]).rstrip()
    prefix = _PREFIX.match(line)
    assert prefix is not None  # every part is optional
    source = prefix["process"] or prefix["rank"] or ""
    return Line(source, f"{prefix['logged'] or ''}{prefix['stamp'] or ''}", line[prefix.end() :])


def parse_lines(log_text: str) -> list[Line]:
    return [parse_line(line) for line in log_text.splitlines()[-_LINES:]]


def chains(lines: Iterable[Line]) -> list[Chain]:
    """Every chain of exceptions in the log, by where it begins. Lines of different processes may be interleaved."""
    streams: dict[str, list[tuple[int, Line]]] = {}
    for number, line in enumerate(lines):
        streams.setdefault(line.source, []).append((number, line))
    found = [chain for stream in streams.values() for chain in _chains_of_one(stream)]
    return [chain for _, chain in sorted(found, key=lambda numbered: numbered[0])]


def _chains_of_one(stream: list[tuple[int, Line]]) -> Iterator[tuple[int, Chain]]:
    lines = [line for _, line in stream]
    at = 0
    while at < len(lines):
        if _START not in lines[at].text:
            at += 1
            continue
        begin = at
        before = lines[at].text.partition(_START)[0] or (lines[at - 1].text if at else "")
        raised: list[Raised] = []
        while at < len(lines) and _START in lines[at].text:
            at, exception = _read_traceback(lines, at + 1)
            raised += [exception] if exception else []
            following = _skip_blank(lines, at)
            if following < len(lines) and lines[following].text in _LINKS:
                at = _skip_blank(lines, following + 1)
            else:
                break
        if raised:
            yield stream[begin][0], Chain(before.strip(), tuple(raised))


def _read_traceback(lines: list[Line], at: int) -> tuple[int, Raised | None]:
    """Read from the first frame at ``at``; returns where the exception's message ends.

    An exception without a message (a bare ``assert``) gets its place and the code that raised it instead.
    """
    place = ""
    while at < len(lines) and lines[at].text.startswith((" ", "\t")):
        frame = _FRAME.match(lines[at].text)
        if frame:
            code = lines[at + 1].text.strip() if at + 1 < len(lines) else ""
            place = f"in {frame['file']} line {frame['line']}: {code}"
        at += 1
    if at == len(lines):
        return at, None
    first = _EXCEPTION.match(lines[at].text)
    if first is None:
        return at, None
    header = lines[at].header
    message = [first["message"] or place]
    at += 1
    while at < len(lines) and lines[at].header == header and _continues(lines[at].text):
        message.append(lines[at].text)
        at += 1
    return at, Raised(first["type"], _one_line(message), message[0])


def _continues(text: str) -> bool:
    return bool(text) and _START not in text and text not in _LINKS and not _UNRELATED.match(text)


def _skip_blank(lines: list[Line], at: int) -> int:
    while at < len(lines) and not lines[at].text:
        at += 1
    return at


def _one_line(message: list[str]) -> str:
    """The message in one line, without what pydantic adds for the developer."""
    text = " ".join(line.strip() for line in message[:_MESSAGE_LINES])
    return shorten(re.sub(r"\s*\[type=\w+, input_value=.*", "", text).strip())


def shorten(text: str) -> str:
    if len(text) <= _MESSAGE_CHARACTERS:
        return text
    return text[:_MESSAGE_CHARACTERS].rpartition(" ")[0] + " ..."
