"""Are the files of a storage tier whole?

Sizes are always checked: files of one rank, pool or group are equally long, and a shorter or longer one is damaged or
was written under other settings. Bytes are checked where a hash was recorded.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from optistack.errors import InputError
from optistack_hicache.storage.collect import remove
from optistack_hicache.storage.folder import Folder
from optistack_hicache.storage.hashes import Record, Records, appending, read_records, sha256_of, write_records
from optistack_hicache.storage.names import Holding
from optistack_hicache.storage.scan import Entry, Scan, scan


class Damage(StrEnum):
    """``empty``, ``short``, ``long``: not as many bytes as its neighbours; ``bytes``: not those that were recorded,
    without having been written to; ``changed``: written to in place, which no engine does; ``unreadable``: the disk
    does not give it out; ``forbidden``: this user may not read it, so nothing is known of it and it is not removed."""

    EMPTY = "empty"
    SHORT = "short"
    LONG = "long"
    BYTES = "bytes"
    CHANGED = "changed"
    UNREADABLE = "unreadable"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True)
class Bad:
    """A damaged file. ``expected_bytes`` is how long it should be."""

    entry: Entry
    damage: Damage
    expected_bytes: int

    def describe(self) -> str:
        if self.damage is Damage.BYTES:
            return "its bytes are not those that were recorded, and nobody has written to it"
        if self.damage is Damage.CHANGED:
            return "its bytes were changed in place since they were recorded"
        if self.damage is Damage.UNREADABLE:
            return "it cannot be read"
        if self.damage is Damage.FORBIDDEN:
            return "this user may not read it"
        return f"{self.damage.value}: {self.entry.size_bytes:,} bytes instead of {self.expected_bytes:,}"


@dataclass
class Verified:
    """``files`` looked at, ``hashed`` of them compared with a hash, ``recorded`` hashed for the first time now.

    ``guessed`` holdings whose expected size is a guess: as many files have one size as another.
    ``torn``    whether the record ended in the middle of a line, which is as if it were not there.
    ``broken``  lines of the record, numbered from 1, that say nothing: their files count as never recorded.
    """

    files: int = 0
    hashed: int = 0
    recorded: int = 0
    bad: list[Bad] = field(default_factory=list)
    removed: int = 0
    guessed: list[Holding] = field(default_factory=list)
    torn: bool = False
    broken: list[int] = field(default_factory=list)

    @property
    def forbidden(self) -> int:
        return sum(bad.damage is Damage.FORBIDDEN for bad in self.bad)


def expected_sizes(found: Scan, page_bytes: int | None = None) -> tuple[dict[Holding, int], list[Holding]]:
    """Bytes that a file of each holding should have, and the holdings where that is a guess.

    It is what most of them have, the larger one when as many have another, or ``page_bytes`` where it is given.
    InputError when that is given for files that are not all of one kind, or no file has it.
    """
    sizes: dict[Holding, int] = {}
    guessed = []
    for one, entries in found.by_holding().items():
        counts = Counter(entry.size_bytes for entry in entries if entry.size_bytes)
        most = max(counts.values(), default=0)
        common = [size for size, count in counts.items() if count == most]
        sizes[one] = max(common, default=0)
        if len(common) > 1:
            guessed.append(one)
    if page_bytes is None:
        return sizes, guessed
    if len({(one.place, one.engine, one.model) for one in sizes}) > 1 or len(set(sizes.values())) > 1:
        raise InputError(
            "The files are not all of one kind, and --page-bytes is one size.", fix="Give one key's folder."
        )
    counts = Counter(entry.size_bytes for entry in found.entries)
    if counts and page_bytes not in counts:
        raise InputError(
            f"No file here has {page_bytes:,} bytes; most have {counts.most_common(1)[0][0]:,}.",
            fix="Give --page-bytes the size of a whole file, or leave it out.",
        )
    return dict.fromkeys(sizes, page_bytes), []


def _refuse_most(found: Scan, page_bytes: int | None) -> None:
    """A size that was mistyped would remove what is whole, and of a tier that is damaged so far little is left."""
    bad = sum(entry.size_bytes != page_bytes for entry in found.entries)
    if page_bytes is not None and 2 * bad > len(found.entries):
        raise InputError(
            f"{bad:,} of {len(found.entries):,} files have another size than {page_bytes:,} bytes, and --remove would "
            "take them all.",
            fix="Look at them without --remove; if they are damaged, empty the folder: gc --max-bytes 0.",
        )


def verify(
    folder: Folder,
    *,
    page_bytes: int | None = None,
    record: bool = False,
    sizes_only: bool = False,
    remove_bad: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Verified:
    """Check every file below ``folder``; if asked, record hashes of those without one, and remove the damaged."""
    found = scan(folder)
    sizes, guessed = expected_sizes(found, page_bytes)
    if remove_bad:
        _refuse_most(found, page_bytes)
    records = Records() if sizes_only else read_records(folder)
    result = Verified(files=len(found.entries), guessed=guessed, torn=records.torn, broken=records.broken)
    kept: dict[str, Record] = {}
    with contextlib.ExitStack() as files:
        add = None
        if record:
            write_records(folder, records.of)  # without lines that say nothing, and before hours of reading
            add = files.enter_context(appending(folder))
            # A run after one that was killed goes on where that one ended.
            found.entries.sort(key=lambda entry: entry.name in records.of)
        for number, entry in enumerate(found.entries):
            if number % 256 == 0:
                progress(f"{number:,} of {len(found.entries):,} files")
            bad = _size(entry, sizes[entry.holding])
            if bad is None and not sizes_only:
                bad = _bytes(folder, entry, sizes[entry.holding], records.of.get(entry.name), kept, result, add)
            if bad is not None:
                result.bad.append(bad)
                if remove_bad and bad.damage is not Damage.FORBIDDEN and _removed(folder, entry):
                    result.removed += 1
    if record:
        write_records(folder, kept)
    return result


def _size(entry: Entry, expected: int) -> Bad | None:
    if entry.size_bytes == expected and expected:
        return None
    damage = Damage.LONG if entry.size_bytes > expected else Damage.SHORT
    return Bad(entry, damage if entry.size_bytes else Damage.EMPTY, expected)


def _bytes(
    folder: Folder,
    entry: Entry,
    expected: int,
    known: Record | None,
    kept: dict[str, Record],
    result: Verified,
    add: Callable[[str, Record], None] | None,
) -> Bad | None:
    """Compare ``entry`` with what is known of it, or ``add`` it, also to ``kept``, for the first time."""
    same_file = known is not None and known.inode == entry.inode
    try:
        if not same_file and add is None:
            os.close(folder.open(entry.parts))
            return None
        now = sha256_of(folder, entry)
    except FileNotFoundError:  # evicted meanwhile
        return None
    except PermissionError:
        if same_file and known is not None:
            kept[entry.name] = known
        return Bad(entry, Damage.FORBIDDEN, expected)
    except OSError:
        return Bad(entry, Damage.UNREADABLE, expected)
    if not same_file or known is None:
        result.recorded += 1
        kept[entry.name] = Record(entry.inode, entry.written_ns, now)
        if add is not None:
            add(entry.name, kept[entry.name])
        return None
    result.hashed += 1
    kept[entry.name] = known
    if now == known.sha256:
        return None
    return Bad(entry, Damage.BYTES if entry.written_ns == known.written_ns else Damage.CHANGED, expected)


def _removed(folder: Folder, entry: Entry) -> bool:
    try:
        return remove(folder, entry, even_if_used=True)
    except OSError as error:
        raise InputError(
            f"{Path(folder.path, entry.name)} may not be removed: {error.strerror}.",
            fix="Run this as the user that the engine runs as.",
        ) from None
