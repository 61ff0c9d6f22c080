"""Standard output as a place that can fail: closed, full, or in an encoding that lacks a character."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path


class _Stdout(io.TextIOWrapper):
    """Keeps the error that printing ended with, which nothing else tells from another file's."""

    failure: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.failure = error
            raise


def prepare() -> bool:
    """Make stdout ready for a command. Returns False where there is none.

    A character that its encoding lacks is printed as a replacement.
    """
    if sys.stderr is None:  # print() would take stdout instead
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open until the program ends
    if sys.stdout is None:
        return False
    if type(sys.stdout) is io.TextIOWrapper:
        before = sys.stdout
        encoding, buffered = before.encoding, before.line_buffering
        # In the C locale Python's own choice gives back bytes of names, and fails for what ASCII lacks.
        fails = before.errors == "strict" or (before.errors == "surrogateescape" and not encoding.startswith("utf"))
        errors = "replace" if fails else before.errors
        sys.stdout = sys.__stdout__ = _Stdout(  # type: ignore[misc]  # as Python does when it starts
            before.detach(), encoding=encoding, errors=errors, line_buffering=buffered
        )
    return True


def finish() -> None:
    """Print what is left. Raises the error that printing ended with, also where somebody went on after it."""
    sys.stdout.flush()
    if isinstance(sys.stdout, _Stdout) and sys.stdout.failure is not None:
        raise sys.stdout.failure


def is_failure(error: BaseException) -> bool:
    """Whether ``error`` is why something could not be printed."""
    return isinstance(sys.stdout, _Stdout) and sys.stdout.failure is error


def give_up() -> None:
    """Nothing more can be printed. Python flushes stdout once more when it ends, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_exactly(text: str) -> None:
    """Print what is a file by itself, in UTF-8 whatever the encoding of stdout: nothing in it may be replaced."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="strict")
    print(text, end="")
