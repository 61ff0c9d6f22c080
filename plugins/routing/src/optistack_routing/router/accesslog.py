"""One line of JSON for each routed request."""

from __future__ import annotations

import json
import logging
import sys
from io import FileIO
from pathlib import Path
from typing import Any

from optistack.errors import InputError

log = logging.getLogger("optistack.route")

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class AccessLog:
    """Lines are written four times a second rather than each by itself. ``reopen`` follows a rotated file.

    Lines that cannot be written (a full disk) are lost, and the log says once that they are.
    """

    def __init__(self, where: str) -> None:
        """``where`` is a path, or ``-`` for stderr. Raises InputError."""
        self._path = None if where == "-" else Path(where)
        self._lines: list[str] = []
        self._file: FileIO | None = None
        self._failing = False
        self.reopen()

    def write(self, line: dict[str, Any]) -> None:
        self._lines.append(_ENCODE(line))

    def flush(self) -> None:
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        text = "\n".join(lines) + "\n"
        try:
            if self._file is None:
                sys.stderr.write(text)
                sys.stderr.flush()
            else:
                _write(self._file, text.encode())
        except OSError as error:
            if not self._failing:
                log.warning("the access log loses lines: %s", error.strerror or error)
            self._failing = True
        else:
            self._failing = False

    def reopen(self) -> None:
        if self._path is None:
            return
        try:
            fresh = FileIO(self._path, "a")
        except OSError as error:
            raise InputError(f"{self._path}: {error.strerror}.", fix="Give --access-log a file to write.") from None
        self.close()
        self._file = fresh

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


def _write(file: FileIO, data: bytes) -> None:
    """All of it: a file without a buffer may take a part, and one with a buffer would keep what it cannot write."""
    while data:
        data = data[file.write(data) or 0 :]
