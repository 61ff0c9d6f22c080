"""How long work reports where it is; the command line decides how that looks."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What takes longer than two seconds tells one of these."""

    def step(self, text: str) -> None:
        """The next part of the work begins: a sentence without a full stop, e.g. ``Installing vLLM 0.32.0``."""

    def detail(self, text: str) -> None:
        """Where the current step is, e.g. ``downloading torch-2.13.0.whl (190 MB)``. Comes often; may be dropped."""


class Silent:
    """A :class:`Progress` that tells nobody."""

    def step(self, text: str) -> None:
        pass

    def detail(self, text: str) -> None:
        pass


SILENT = Silent()
