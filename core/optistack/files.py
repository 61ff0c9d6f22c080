"""Files that are whole or not there. Standard library only: the guardian of a deployment uses this."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from optistack.errors import InputError


def numbered_lines(path: Path, *, fix: str) -> list[tuple[int, str]]:
    """The lines of a text file that are not blank, each with its number, from 1.

    Only a line feed ends a line: JSON may have other ends of lines, such as U+2028, in a string. Raises InputError,
    with ``fix``, when the file cannot be read or is not text in UTF-8.
    """
    try:
        # Not read_text, to which a carriage return alone ends a line too.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", fix=fix) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8.", fix=fix) from error
    return [(number, line.removesuffix("\r")) for number, line in enumerate(lines, 1) if line.strip()]


def read_json_line(line: str) -> Any:
    """What a line of JSON Lines holds.

    Raises ValueError where that is nothing, is nested deeper than Python reads, or has text that UTF-8 has no bytes for
    (half a surrogate pair), which no engine can be sent.
    """
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Write ``content`` so that a reader finds the old file or the new one, never a part, also after a power loss.

    A symbolic link stays one: what it points to is written. What is there and no regular file (a device, a pipe) is
    opened and written to, and keeps its mode. ``mode`` is the most: others may no more than the umask, or the file
    that was there, lets them.
    """
    data = content.encode() if isinstance(content, str) else content
    if writes_through(path):
        with path.open("wb") as file:
            file.write(data)
        return
    path = Path(os.path.realpath(path))
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(_allowed(path, mode))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _allowed(path: Path, mode: int) -> int:
    """``mode`` less what the umask takes from others, and what they may not do with the file at ``path``."""
    umask = os.umask(0o077)  # to read it is to set it
    os.umask(umask)
    try:
        there = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        there = 0o777
    return mode & (there | 0o700) & ~(umask & 0o077)


def writes_through(path: Path) -> bool:
    """Whether ``path`` is there and must be opened as it is: no regular file can take its place."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
    # /dev/stdout, /dev/fd/3: whoever gave the descriptor holds that very file open.
    above = Path(os.path.realpath(path.parent))
    return not regular or above == Path("/dev") or above.is_relative_to("/proc")


def write_file(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file that the user named, as ``write_whole`` does. Raises InputError when that is not possible."""
    if path.is_dir():
        raise InputError(f"{path} is a folder.", fix="Name a file in it.")
    try:
        write_whole(path, content, mode=mode)
    except BrokenPipeError:
        raise InputError(f"{path} cannot be written: its reader is gone.", fix="Write it elsewhere.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", fix="Name another file.") from error


def check_writable(option: str, path: Path) -> None:
    """Raise InputError where no file can be written at ``path``: told now, not after the work."""
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder.", fix="Name a file in it.")
    if writes_through(path):
        if not os.access(path, os.W_OK):
            raise InputError(f"{option} {path} is not writable.", fix="Write it elsewhere.")
        return
    parent = Path(os.path.realpath(path)).parent
    shown = parent if path.is_symlink() else path.parent
    if not parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {shown}.", fix="Make it, or write elsewhere.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: {shown} is not writable.", fix="Write it elsewhere.")
