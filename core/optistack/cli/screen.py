"""Printing: tables and colour in a terminal, plain lines that never wrap in a pipe, progress and errors on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.status import Status

PIPE_WIDTH = 100_000
"""Columns in a pipe: more than any line, so that nothing wraps."""

USUAL_WIDTH = 80

HEARTBEAT_S = 15.0
"""How often a step that takes long says in a pipe where it is."""


def show(*parts: RenderableType) -> None:
    """Print ``parts`` to stdout, one below the other."""
    from rich.console import Console

    console = _wide_enough(Console(highlight=False))
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    sys.stdout.write(plain(*parts))


def is_pipe() -> bool:
    """Whether stdout is read by a program: then every thing is one line."""
    from rich.console import Console

    return not Console().is_terminal


def note(text: str) -> None:
    """Something that happened besides the result; on stderr, so that the result stays clean.

    What is noted on the way out of an interruption says what to do about it: it goes along, for ``--json``.
    """
    from rich.text import Text

    error = sys.exc_info()[1]
    if isinstance(error, KeyboardInterrupt):
        error.add_note(text)
    _result_first()
    _stderr().print(Text(text), soft_wrap=True)


def plain(*parts: RenderableType, width: int = PIPE_WIDTH) -> str:
    """``parts`` as text without colour, lines without blanks at their end."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=width, highlight=False, color_system=None, emoji=False).print(*parts, sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


_documents = 0


def print_json(value: Any) -> None:
    """``value`` as JSON: a pydantic model, or what json can write."""
    global _documents
    _documents += 1
    data = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    utf8 = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    print(json.dumps(data, indent=2, ensure_ascii=not utf8))


def has_printed_json() -> bool:
    """Whether this command's JSON document is out; a reader can parse one only."""
    return _documents > 0


def begin() -> None:
    """A command begins: nothing has been printed."""
    global _documents
    _documents = 0


def print_error(message: str, fix: str = "") -> None:
    """An error: one sentence and its fix, on stderr."""
    _result_first()
    console = _stderr()
    from rich.text import Text

    console.print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)
    if fix:
        console.print(Text.assemble(("Fix: ", "bold"), fix), soft_wrap=True)


def _result_first() -> None:
    """What stdout holds back in a pipe stands before what is said about it, and is read while a command stays.

    A stdout that fails is told when the command ends, and takes nothing of what goes to stderr.
    """
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()


def _stderr() -> Console:
    from rich.console import Console

    return _wide_enough(Console(stderr=True, highlight=False))


def _wide_enough(console: Console) -> Console:
    """A terminal that says it has no columns (COLUMNS=0, some pseudo-terminals) is printed to all the same."""
    if console.width < 1:
        console.width = USUAL_WIDTH
    return console


class ScreenProgress:
    """What happens during something long: a spinner in a terminal, a line for each step in a pipe. On stderr.

    In a terminal a step that is over is kept as a line with the time that it took; in a pipe a long one says now and
    then where it is. Use as a context manager.
    """

    def __init__(self) -> None:
        self._console = _stderr()
        # Not what rich takes for a terminal: FORCE_COLOR in a log must not fill it with a spinner's frames.
        self._spins = sys.stderr.isatty()
        self._status: Status | None = None
        self._text = ""
        self._since = 0.0
        self._told = 0.0

    def __enter__(self) -> ScreenProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._finish(done=kind is None)

    def close(self) -> None:
        """The last step is done; more may follow."""
        self._finish(done=True)

    def step(self, text: str) -> None:
        self._finish(done=True)
        self._text, self._since = text, time.monotonic()
        self._told = self._since
        if self._spins:
            self._status = self._console.status(_escaped(text))
            self._status.start()
        else:
            self._console.print(_escaped(text), soft_wrap=True)

    def detail(self, text: str) -> None:
        now = time.monotonic()
        if not self._spins and text and now - self._told > HEARTBEAT_S:
            self._told = now
            self._console.print(f"  {now - self._since:.0f} s: {_escaped(text)}", soft_wrap=True)
        if self._status is not None:
            room = max(10, self._console.width - len(self._text) - 6)
            self._status.update(f"{_escaped(self._text)} [dim]{_escaped(text[:room])}[/dim]")

    def _finish(self, *, done: bool) -> None:
        if self._status is None:
            return
        self._status.stop()
        self._status = None
        mark, style = ("done", "green") if done else ("failed", "red")
        took = time.monotonic() - self._since
        self._console.print(f"[{style}]{mark:>6}[/{style}] {_escaped(self._text)} [dim]{took:.1f} s[/dim]")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
