"""Recordings on disk: whole files of JSON lines, up to a size, readable by their owner only."""

from __future__ import annotations

import json
import logging
import os
import random
import re
from typing import Any

from optistack.errors import InputError
from optistack_routing.tap.answers import SAMPLING, Exchange, words
from optistack_routing.tap.options import Tap

PROMPT_FIELDS = ("prompt", "suffix", "messages", "tools", "functions", "documents", "chat_template_kwargs")
"""What of a request becomes part of its prompt."""

log = logging.getLogger("optistack.route")


class Recordings:
    """Decides what is recorded and keeps it. A fault of the disk ends the recording, and never a request.

    Each line of a file has ``model``, ``sampling`` (what the request said of it), and the token ids of ``prompt`` and
    ``answer``.
    """

    def __init__(self, tap: Tap) -> None:
        """Raises InputError when the folder cannot be used."""
        self.tap = tap
        self.recorded = self.redacted = 0
        self.on = True
        self._patterns = [re.compile(pattern) for pattern in tap.redact]
        self._lines: list[str] = []
        self._number = 0
        self._dice = random.Random()
        try:
            tap.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._full()
        except OSError as error:
            raise InputError(f"{tap.folder}: {error.strerror}.", fix="Give the tap a folder that it can use.") from None

    def wants_one(self) -> bool:
        return self.on and self._dice.random() < self.tap.share

    def keep(self, request: dict[str, Any], exchange: Exchange) -> None:
        text = "\n".join([*words([request.get(key) for key in PROMPT_FIELDS]), "".join(exchange.text)])
        if any(pattern.search(text) for pattern in self._patterns):
            self.redacted += 1
            return
        sampling = {key: request[key] for key in SAMPLING if request.get(key) is not None}
        line = {"model": request.get("model", ""), "sampling": sampling}
        self._lines.append(json.dumps({**line, "prompt": exchange.prompt, "answer": exchange.answer}) + "\n")
        self.recorded += 1
        if len(self._lines) >= self.tap.shard:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory as one file."""
        lines, self._lines = self._lines, []
        if not lines or not self.on:
            return
        name = f"tap-{os.getpid()}-{self._number:05d}.jsonl"
        part = self.tap.folder / f".{name}.part"
        try:
            self.on = not self._full()
            if not self.on:
                log.warning("the tap stops: %s holds %g MB", self.tap.folder, self.tap.max_mb)
                return
            while (self.tap.folder / name).exists():  # of an older process with this number
                self._number += 1
                name = f"tap-{os.getpid()}-{self._number:05d}.jsonl"
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.writelines(lines)
            part.rename(self.tap.folder / name)
            self._number += 1
        except OSError as error:
            self.on = False
            part.unlink(missing_ok=True)
            log.warning("the tap stops: %s: %s", part, error.strerror)

    def close(self) -> None:
        self.flush()
        log.info("the tap recorded %d answers and left out %d that a rule of it found", self.recorded, self.redacted)

    def _full(self) -> bool:
        sizes = [file.stat().st_size for file in self.tap.folder.glob("tap-*.jsonl")]
        return sum(sizes) >= self.tap.max_mb * 1e6
