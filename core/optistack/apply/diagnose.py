"""Why an engine did not start, in its own words.

The end of a log is rarely the reason: the process that failed reports to one that reports to one more, and each prints
a traceback, and then come the complaints of those it left behind. The reason is looked for in this order:

1. a line that the backend's own patterns match
2. the message of an argument parser
3. the first exception that its process announced as fatal, since what other ranks print after it is a consequence
4. a line that says by itself why a process cannot run (a missing module, a port in use, a fatal signal)
5. the last exception that nobody announced (an earlier one may have been handled)
6. word that one of the engine's processes was killed
7. what a C++ library said before it aborted, or an exception that is usually a consequence
8. the exit code or the signal, with the last line
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from optistack.apply.tracebacks import Chain, Line, Raised, chains, parse_line, parse_lines, shorten

# An exception that only points at another one.
_POINTER = re.compile(
    r"Engine core initialization failed|Frontend process failed during engine core"
    r"|WorkerProc initialization failed|See (?:stack trace|root cause)|EngineDeadError"
    r"|Please see the error messages above|scheduler died during initialization"
    r"|^(?:SystemExit|KeyboardInterrupt|CancelledError|GeneratorExit):"
)
# An exception of a process that lost another one.
_CONSEQUENCE = re.compile(
    r"^(?:BrokenPipeError|EOFError|ConnectionResetError|ConnectionAbortedError|DistBackendError|DistNetworkError"
    r"|DistStoreError|ZMQError)\b|NCCL error|[Cc]onnection (?:closed|reset) by peer|TCPStore|^RuntimeError: cancelled"
)
_FATAL = re.compile(
    r"failed to start|hit an exception|encountered a fatal error|Initialization failed|WorkerProc failed"
    r"|^Process [\w-]+:$"
)
_ARGUMENT_ERROR = re.compile(r"^[^:]+: error: (?P<reason>.+)")
_BY_ITSELF = (
    re.compile(r"^\S*python[\d.]*: (?P<reason>.*No module named .+)"),
    re.compile(r"^(?:ERROR:\s+)?(?P<reason>.*address already in use.*)", re.IGNORECASE),
    re.compile(r"^Fatal Python error: .+"),
    re.compile(r"error while loading shared libraries: .+"),
    re.compile(r": command not found$"),
    re.compile(r": bad interpreter: .+"),
)
_ABORT = re.compile(r"^\s*what\(\):\s+(?P<reason>.+)")
# In the words of vLLM ("{'EngineCore': -9}") and of SGLang ("exit code: -9").
_CHILD_KILLED = re.compile(r"(?:Failed core proc.*': |exit code:? )-9\b")
# Printed at the end of nearly every run, whatever happened.
_CHATTER = re.compile(
    r"resource_tracker|destroy_process_group|warnings\.warn|Warning: |nanobind|^ - (?:leaked|\.\.\.) "
)

_OUT_OF_MEMORY = "if nobody did that, the machine or its control group ran out of memory (`dmesg` says so)"


def start_failure(log_text: str, exit_code: int | None, *, patterns: Sequence[str] = ()) -> str:
    """The reason in one line, as the engine gave it.

    ``exit_code`` is negative for a signal, as :mod:`subprocess` has it, and ``None`` for an engine that still runs.
    ``patterns`` are regular expressions of the backend, matched against each line without its prefix; a group named
    ``reason`` selects a part of the line.
    """
    lines = parse_lines(log_text)
    reason = _reason(lines, [re.compile(pattern) for pattern in patterns])
    if reason:
        return reason
    said = [line.text for line in lines if line.text.strip() and not _CHATTER.search(line.text)]
    said += [str(raised) for chain in chains(lines) for raised in chain.raised]  # those that only point at others
    ends = f"its log ends with: {shorten(said[-1].strip())}" if said else "its log is empty"
    if exit_code is None:
        return ends[0].upper() + ends[1:]
    if exit_code == -signal.SIGKILL:
        return f"it was killed (SIGKILL); {_OUT_OF_MEMORY}; {ends}"
    if exit_code < 0:
        return f"it was ended by {_signal_name(-exit_code)}; {ends}"
    return f"it exited with code {exit_code}; {ends}"


def without_prefix(line: str) -> str:
    """A line of a log without time, process, place and colour."""
    return parse_line(line).text


def _reason(lines: list[Line], patterns: Sequence[re.Pattern[str]]) -> str:
    found = chains(lines)
    has_usage = any(line.text.startswith("usage: ") for line in lines)
    announced = [chain for chain in found if _FATAL.search(chain.announcement)]
    return (
        _first_match(lines, patterns)
        or _first_match(lines, [_ARGUMENT_ERROR] if has_usage else [])
        or next(filter(None, map(_cause, announced)), "")
        or _first_match(lines, _BY_ITSELF)
        or next(filter(None, map(_cause, reversed(found))), "")
        or _child_killed(lines)
        or _first_match(lines, [_ABORT])
        or next(filter(None, map(_consequence, found)), "")
    )


def _child_killed(lines: list[Line]) -> str:
    killed = any(_CHILD_KILLED.search(line.text) for line in lines)
    return f"one of its processes was killed (SIGKILL); {_OUT_OF_MEMORY}" if killed else ""


def _first_match(lines: list[Line], patterns: Sequence[re.Pattern[str]]) -> str:
    for pattern in patterns:
        for line in lines:
            match = pattern.search(line.text)
            if match:
                return shorten(match.groupdict().get("reason", line.text).strip())
    return ""


def _cause(chain: Chain) -> str:
    """The last exception of the chain, which says it in the caller's terms, and the first, which began it."""
    telling = [
        raised for raised in chain.raised if not _matches(_POINTER, raised) and not _matches(_CONSEQUENCE, raised)
    ]
    if not telling:
        return ""
    first, last = telling[0], telling[-1]
    if first.message in last.message or last.message in first.message:
        return str(last if first.message in last.message else first)
    return f"{last} (from {first})"


def _consequence(chain: Chain) -> str:
    return next((str(raised) for raised in chain.raised if _matches(_CONSEQUENCE, raised)), "")


def _matches(pattern: re.Pattern[str], raised: Raised) -> bool:
    # What follows the first line may be another process's.
    return bool(pattern.search(f"{raised.type}: {raised.head}"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
