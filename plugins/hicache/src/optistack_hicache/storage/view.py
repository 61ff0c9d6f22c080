"""What the commands print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from optistack_hicache.storage.scan import Scan, total_bytes
from optistack_hicache.storage.units import age_word, bytes_word

if TYPE_CHECKING:
    from rich.console import RenderableType

    from optistack_hicache.storage.collect import Collected
    from optistack_hicache.storage.listing import Line
    from optistack_hicache.storage.verify import Verified


def ls_view(found: Scan, lines: Sequence[Line], *, wide: bool) -> Iterator[RenderableType]:
    table = _table("folder", "engine", "model", "KV", "page", "layout", "files", "size", "written", "used")
    for line in lines:
        place = line.place if wide or line.key is None else f"...{line.key}"
        table.add_row(
            place,
            f"{line.engine} {line.version or ''}".rstrip(),
            line.model,
            line.dtype or "?",
            line.page or "?",
            line.layout or "?",
            f"{line.files:,}",
            bytes_word(line.bytes),
            f"{age_word(line.oldest_s)} to {age_word(line.written_s)} ago".replace("now ago", "now"),
            age_word(line.used_s),
        )
    yield table
    yield from _notes(found, lines)


def du_view(found: Scan, sizes: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    table = _table("size", "files", "folder")
    for one in sizes:
        table.add_row(bytes_word(one["bytes"]), f"{one['files']:,}", one["folder"])
    table.add_row(bytes_word(total_bytes(found.entries)), f"{len(found.entries):,}", "in all")
    yield table
    yield from _notes(found, ())


def gc_view(done: Collected, *, dry_run: bool) -> Iterator[RenderableType]:
    verb = "would be removed" if dry_run else "removed"
    yield Text(f"{len(done.entries):,} files {verb}, {bytes_word(done.freed_bytes)}")
    if done.leftovers:
        yield Text(f"{len(done.leftovers):,} temporary files of writers that died {verb}")
    yield Text(f"{done.kept:,} files kept, {bytes_word(done.kept_bytes)}")
    if done.busy:
        yield Text(f"of those {done.busy:,}, {bytes_word(done.busy_bytes)}, were used or replaced meanwhile")
    if done.gone:
        yield Text(f"{done.gone:,} files were removed by somebody else meanwhile")


def verify_view(result: Verified, *, shown: int) -> Iterator[RenderableType]:
    for bad in result.bad[:shown]:
        yield Text(f"{bad.entry.name}  {bad.describe()}")
    if len(result.bad) > shown:
        yield Text(f"and {len(result.bad) - shown:,} more")
    parts = [f"{result.files:,} files", f"{len(result.bad) - result.forbidden:,} damaged"]
    parts += [f"{result.forbidden:,} that this user may not read"] if result.forbidden else []
    parts += [f"{result.removed:,} removed"] if result.removed else []
    parts += [f"{result.hashed:,} compared with their hash"]
    parts += [f"{result.recorded:,} recorded"] if result.recorded else []
    yield Text(", ".join(parts))
    if result.torn:
        yield Text("the record ended in the middle of a line, which was left out; --record goes on from there")
    for one in result.guessed:
        yield Text(f"{one.place}: as many files of {one.model} {one.part} have one size as another, taken for damaged")


def _notes(found: Scan, lines: Sequence[Line]) -> Iterator[Text]:
    for line in lines:
        if line.mixed:
            yield Text(f"{line.place}: files of {line.model} differ in size; `optistack hicache verify` names them")
    shared: dict[str, set[str]] = {}
    for line in lines:
        shared.setdefault(line.place, set()).add(line.written_as)
    for place, models in shared.items():
        if len(models) > 1:
            yield Text(f"{place}: shared by {', '.join(sorted(models))}")
    if found.leftovers:
        size = bytes_word(total_bytes(found.leftovers))
        yield Text(f"{len(found.leftovers):,} temporary files, {size}; gc removes those of writers that died")
    if found.others:
        yield Text(f"{found.others:,} files of other kinds, such as {found.stranger}; nothing here touches them")


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        right = head in ("files", "size")
        table.add_column(head, justify="right" if right else "left", overflow="fold", header_style="dim")
    return table
