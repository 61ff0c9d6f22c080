"""Which files a storage tier gives up when it may not hold all of them, and giving them up beside a running engine.

A file is unlinked whole: an engine that has it open reads on, one that comes later finds nothing, which is a miss.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass, field

from optistack.errors import InputError
from optistack_hicache.storage.folder import Folder
from optistack_hicache.storage.scan import Entry, Scan, total_bytes
from optistack_hicache.storage.units import bytes_word

TURN_S = 60
"""Files used within the same minute count as used together. The last of them goes first: a prefix is written and read
from its start, and without its start the rest is never asked for."""

GONE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)
"""The file, or a folder above it, is no longer there, or a link stands in its place."""

SKEW_S = 60.0
"""How far the clock of whoever wrote a file may be ahead of ours."""

LEFTOVER_S = 3600.0
"""Age after which nobody is still writing a temporary file."""


@dataclass
class Collected:
    """``entries`` unlinked, or to be unlinked; ``gone``, of those that should have been, by others before.

    ``kept``, ``kept_bytes`` are the KV files that nothing unlinked here: those that were not chosen, as the scan saw
    them (one that others remove meanwhile still counts), and ``busy``, ``busy_bytes`` that were chosen and used or
    replaced since. ``future`` files have a time that is yet to come, and are of no age.
    """

    entries: list[Entry] = field(default_factory=list)
    leftovers: list[Entry] = field(default_factory=list)
    kept: int = 0
    kept_bytes: int = 0
    busy: int = 0
    busy_bytes: int = 0
    gone: int = 0
    future: int = 0

    @property
    def freed_bytes(self) -> int:
        return total_bytes(self.entries) + total_bytes(self.leftovers)


def refuse_tiny(found: Scan, max_bytes: int | None) -> None:
    """InputError where ``max_bytes`` holds not one file and is not 0: it would empty the tier without saying so."""
    largest = max((entry.size_bytes for entry in found.entries), default=0)
    if max_bytes and max_bytes < largest:
        raise InputError(
            f"--max-bytes is {bytes_word(max_bytes)}, and one file here takes {bytes_word(largest)}: all would go.",
            fix="Give a unit, such as 400GiB, or 0 where nothing is to stay.",
        )


def choose(found: Scan, now_s: float, *, max_bytes: int | None = None, max_age_s: float | None = None) -> Collected:
    """What has to go so that nothing is older than ``max_age_s`` since its last use and all take ``max_bytes``."""
    order = sorted(found.entries, key=lambda entry: (entry.used_s // TURN_S, -entry.used_s, entry.name))
    rest = total_bytes(order)
    chosen = Collected(leftovers=[entry for entry in found.leftovers if now_s - entry.used_s > LEFTOVER_S])
    chosen.future = sum(entry.used_s > now_s + SKEW_S for entry in order)
    for entry in order:
        old = max_age_s is not None and now_s - entry.used_s > max_age_s
        over = max_bytes is not None and rest > max_bytes
        if old or over:
            chosen.entries.append(entry)
            rest -= entry.size_bytes
    chosen.kept, chosen.kept_bytes = len(order) - len(chosen.entries), rest
    return chosen


def collect(folder: Folder, chosen: Collected) -> Collected:
    """Unlink what was chosen, but for files that were used or replaced since they were looked at.

    Folders that it empties go too. vLLM makes a file's folders before each write (0.26 to 0.33
    v1/kv_offload/tiering/fs/io.py, _ensure_dirs); a write that is between the two fails, as on a full disk, and is a
    miss later.
    """
    done = Collected(future=chosen.future)
    for entry in chosen.entries:
        if remove(folder, entry):
            done.entries.append(entry)
        elif (size_bytes := _size_bytes(folder, entry)) is None:
            done.gone += 1
        else:
            done.busy, done.busy_bytes = done.busy + 1, done.busy_bytes + size_bytes
    done.kept, done.kept_bytes = chosen.kept + done.busy, chosen.kept_bytes + done.busy_bytes
    done.leftovers = [entry for entry in chosen.leftovers if remove(folder, entry)]
    for parts in {entry.parts[:-1] for entry in done.entries if entry.holding.engine == "vllm"}:
        with contextlib.suppress(OSError):  # not empty, or gone
            folder.rmdir(parts)
            folder.rmdir(parts[:-1])
    return done


def _size_bytes(folder: Folder, entry: Entry) -> int | None:
    """What ``entry`` takes now; None where no such file is there any more."""
    try:
        return folder.stat(entry.parts).st_size
    except OSError as error:
        if error.errno in GONE:
            return None
        raise


def remove(folder: Folder, entry: Entry, *, even_if_used: bool = False) -> bool:
    """Unlink ``entry``; False where it is gone, was replaced, or (unless that does not matter) has been used since."""
    try:
        status = folder.stat(entry.parts)
        same = status.st_ino == entry.inode and status.st_mtime_ns == entry.written_ns
        if not same or (status.st_atime > entry.used_s and not even_if_used):
            return False
        folder.unlink(entry.parts)
    except OSError as error:
        if error.errno in GONE:
            return False
        raise
    return True
