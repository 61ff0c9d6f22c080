"""One line of JSON for each routed request."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO

from optistack.errors import InputError

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class AccessLog:
    """Lines are written four times a second rather than each by itself. ``reopen`` follows a rotated file."""

    def __init__(self, where: str) -> None:
        """``where`` is a path, or ``-`` for stderr. Raises InputError."""
        self._path = None if where == "-" else Path(where)
        self._lines: list[str] = []
        self._file: TextIO = sys.stderr
        self.reopen()

    def write(self, line: dict[str, Any]) -> None:
        self._lines.append(_ENCODE(line))

    def flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            self._file.write("\n".join(lines) + "\n")
            self._file.flush()

    def reopen(self) -> None:
        if self._path is None:
            return
        try:
            fresh = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{self._path}: {error.strerror}.", fix="Give --access-log a file to write.") from None
        self.close()
        self._file = fresh

    def close(self) -> None:
        self.flush()
        if self._file is not sys.stderr:
            self._file.close()
            self._file = sys.stderr
