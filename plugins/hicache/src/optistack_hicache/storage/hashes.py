"""Hashes of KV files, kept beside them, since no engine keeps any.

Engines write a file once, under another name, and move it into place, and never write into it again. So a file with the
inode that was recorded has to have the bytes that were recorded; another inode is a file that was written anew, and
nothing is known of it. (A file system may give the inode of a removed file to one of the same name: the file then
counts as changed, and the engine computes it again. That is one file in as many as there are.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from optistack.errors import InputError
from optistack_hicache.storage.folder import Folder
from optistack_hicache.storage.scan import HASHES_FILE, Entry


@dataclass(frozen=True, slots=True)
class Record:
    """What a file was when it was recorded. ``sha256`` in hex digits."""

    inode: int
    written_ns: int
    sha256: str


def sha256_of(folder: Folder, entry: Entry) -> str:
    """Over the bytes of ``entry``. OSError where it is gone or cannot be read."""
    with os.fdopen(folder.open(entry.parts), "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Records:
    """What was kept, by the file's name below the folder.

    ``broken``  numbers, from 1, of the lines that are no record
    ``torn``    whether the last line was cut off, which happens to a ``--record`` that is killed while it writes
    """

    of: dict[str, Record] = field(default_factory=dict)
    broken: list[int] = field(default_factory=list)
    torn: bool = False


def read_records(folder: Folder) -> Records:
    """Those of ``folder``, none where none were kept. InputError where the file cannot be read."""
    try:
        file = os.fdopen(folder.open((HASHES_FILE,)), "rb")
    except FileNotFoundError:
        return Records()
    except OSError as error:
        raise InputError(f"{folder.path / HASHES_FILE} cannot be read: {error.strerror}.") from None
    found: dict[str, Record] = {}
    broken: list[int] = []
    with file:
        for number, line in enumerate(file, start=1):
            try:
                name, record = _read(line)
            except (ValueError, RecursionError):
                if not line.endswith(b"\n"):  # of all lines the last one alone may end so
                    return Records(found, broken, torn=True)
                broken.append(number)
            else:
                found[name] = record
    return Records(found, broken)


def _read(line: bytes) -> tuple[str, Record]:
    """ValueError for a line that is not one of :func:`_line`."""
    words = json.loads(line.decode())
    if not isinstance(words, list) or [type(word) for word in words] != [str, int, int, str]:
        raise ValueError(line)
    name, inode, written_ns, sha256 = words
    return name, Record(inode, written_ns, sha256)


@contextlib.contextmanager
def appending(folder: Folder) -> Iterator[Callable[[str, Record], None]]:
    """A function that adds a record at once, so that a killed run keeps what it had. InputError where it cannot."""
    with _writing(folder):
        descriptor = folder.open((HASHES_FILE,), os.O_WRONLY | os.O_APPEND)
    with os.fdopen(descriptor, "ab", buffering=0) as file:

        def add(name: str, record: Record) -> None:
            with _writing(folder):
                file.write(_line(name, record).encode())

        yield add


def _line(name: str, record: Record) -> str:
    return json.dumps([name, record.inode, record.written_ns, record.sha256]) + "\n"


@contextlib.contextmanager
def _writing(folder: Folder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"Hashes cannot be written into {folder.path}: {error.strerror}.",
            fix="Make room, or run this as the user that the engine runs as.",
        ) from None


def write_records(folder: Folder, records: dict[str, Record]) -> None:
    """Put ``records`` in the place of what was there, at once. InputError where the folder cannot be written."""
    temporary = f"{HASHES_FILE}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with _writing(folder):
        try:
            with os.fdopen(folder.open((temporary,), flags), "w", encoding="utf-8") as file:
                file.writelines(_line(name, record) for name, record in sorted(records.items()))
                file.flush()
                os.fsync(file.fileno())
            folder.replace(temporary, HASHES_FILE)
        except OSError:
            with contextlib.suppress(OSError):
                folder.unlink((temporary,))
            raise
