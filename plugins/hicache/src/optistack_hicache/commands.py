"""``optistack hicache``: what lies in the folder of a storage tier, and keeping it small and whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optistack.cli.commands import new_app
from optistack.errors import CheckFailedError, InputError

if TYPE_CHECKING:
    from optistack_hicache.storage.listing import Line
    from optistack_hicache.storage.scan import Scan

app = new_app("Look after the folder of a storage tier: SGLang's file backend, vLLM's fs tier.")

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Option storage_dir, or a folder in it. Nothing outside is touched.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SHOWN = 20
"""Damaged files that are named; the rest is counted, and --json has all of them."""


@app.command("ls")
def show(directory: DirectoryArgument, json: JsonOption = False) -> None:
    """Say whose KV lies in DIR: engine, model, KV dtype, page, layout, how much and how old."""
    from optistack.cli import screen

    found, lines = _look(directory)
    if json:
        screen.print_json({**_whole(found), "holdings": [line.as_json() for line in lines]})
        return
    from optistack_hicache.storage.view import ls_view

    screen.show(*ls_view(found, lines, wide=screen.is_pipe()))


@app.command()
def du(directory: DirectoryArgument, json: JsonOption = False) -> None:
    """Say how much room each folder in DIR takes, the largest first."""
    from optistack.cli import screen
    from optistack_hicache.storage.listing import by_place

    found, lines = _look(directory)
    sizes = by_place(lines)
    if json:
        screen.print_json({**_whole(found), "folders": sizes})
        return
    from optistack_hicache.storage.view import du_view

    screen.show(*du_view(found, sizes))


@app.command()
def gc(
    directory: DirectoryArgument,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="SIZE", help="Keep at most so much: 400GiB, 400GB or bytes.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option("--max-age", metavar="AGE", help="Keep nothing unused for longer: 12h, 7d, 2w.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove the least recently used KV files, until DIR keeps to a quota.

    An engine may run meanwhile: what is removed it finds missing, and computes. Files of other kinds stay.
    """
    import time

    from optistack.cli import screen
    from optistack_hicache.storage.collect import choose, collect, refuse_tiny
    from optistack_hicache.storage.folder import open_folder
    from optistack_hicache.storage.scan import scan
    from optistack_hicache.storage.units import parse_age_s, parse_bytes

    if max_bytes is None and max_age is None:
        raise InputError("gc is given no quota.", fix="Give --max-bytes, --max-age or both.")
    bytes_wanted = None if max_bytes is None else parse_bytes(max_bytes)
    age_wanted_s = None if max_age is None else parse_age_s(max_age)
    with open_folder(directory) as folder:
        found = scan(folder)
        refuse_tiny(found, bytes_wanted)
        chosen = choose(found, time.time(), max_bytes=bytes_wanted, max_age_s=age_wanted_s)
        try:
            done = chosen if dry_run else collect(folder, chosen)
        except OSError as error:
            raise InputError(
                f"Files in {directory} may not be removed: {error.strerror}.",
                fix="Run this as the user that the engine runs as.",
            ) from None
    if not found.times:
        screen.note(f"{directory} is mounted noatime: what was written first counts as used least.")
    if max_age is not None and done.future:
        screen.note(f"{done.future:,} files have times that are yet to come and count as used now; touch them.")
    if json:
        screen.print_json(
            {
                "dry_run": dry_run,
                "removed": len(done.entries),
                "leftovers": len(done.leftovers),
                "freed_bytes": done.freed_bytes,
                "kept": done.kept,
                "kept_bytes": done.kept_bytes,
                "busy": done.busy,
                "busy_bytes": done.busy_bytes,
                "gone": done.gone,
                "future": done.future,
            }
        )
        return
    from optistack_hicache.storage.view import gc_view

    screen.show(*gc_view(done, dry_run=dry_run))


@app.command()
def verify(
    directory: DirectoryArgument,
    record: Annotated[
        bool, typer.Option("--record", help="Keep a hash of every file that has none yet, in DIR, for the next time.")
    ] = False,
    sizes_only: Annotated[bool, typer.Option("--sizes-only", help="Read no file; compare sizes alone.")] = False,
    page_bytes: Annotated[
        int | None, typer.Option("--page-bytes", min=1, help="Size that every file should have. [what most have]")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove damaged files: the engine computes them.")] = False,
    json: JsonOption = False,
) -> None:
    """Find files that are too short, too long, or not what was recorded. Exit code 1 where damaged files stay, or
    lines of the record cannot be read.

    No engine checks more than that a file is long enough, so damage otherwise comes back as wrong answers.
    """
    from optistack.cli import screen
    from optistack_hicache.storage.folder import open_folder
    from optistack_hicache.storage.verify import verify as check

    if record and sizes_only:
        raise InputError("--record reads every file and --sizes-only reads none.", fix="Give one of them.")
    with open_folder(directory) as folder, screen.ScreenProgress() as progress:
        progress.step("Checking files")
        result = check(
            folder,
            page_bytes=page_bytes,
            record=record,
            sizes_only=sizes_only,
            remove_bad=remove,
            progress=progress.detail,
        )
    left = len(result.bad) - result.removed - result.forbidden
    if json:
        screen.print_json(
            {
                "files": result.files,
                "hashed": result.hashed,
                "recorded": result.recorded,
                "removed": result.removed,
                "record_was_torn": result.torn,
                "broken_record_lines": result.broken,
                "damaged": [
                    {"file": bad.entry.name, "damage": bad.damage, "expected_bytes": bad.expected_bytes}
                    for bad in result.bad
                ],
            }
        )
    else:
        from optistack_hicache.storage.view import verify_view

        screen.show(*verify_view(result, shown=SHOWN))
    if left:
        files = "1 file" if left == 1 else f"{left:,} files"
        screen.print_error(f"{files} in {directory} damaged.", "Add --remove, and the engine computes them again.")
    if result.forbidden:
        files = "1 file" if result.forbidden == 1 else f"{result.forbidden:,} files"
        screen.print_error(f"{files} in {directory} may not be read.", "Run this as the user that the engine runs as.")
    if result.broken:
        from optistack_hicache.storage.scan import HASHES_FILE

        numbers = ", ".join(map(str, result.broken[:SHOWN])) + (", ..." if len(result.broken) > SHOWN else "")
        lines = f"Line {numbers}" if len(result.broken) == 1 else f"{len(result.broken):,} lines ({numbers})"
        screen.print_error(
            f"{lines} of {directory / HASHES_FILE} cannot be read: the hashes of those files are lost.",
            "They were recorded anew; what was damaged before that stays unseen."
            if record
            else "Record them anew with --record; what was damaged before that stays unseen.",
        )
    if left or result.forbidden or result.broken:
        raise typer.Exit(CheckFailedError.exit_code)


def _look(directory: Path) -> tuple[Scan, list[Line]]:
    from optistack_hicache.storage.folder import open_folder
    from optistack_hicache.storage.listing import lines
    from optistack_hicache.storage.scan import scan

    with open_folder(directory) as folder:
        found = scan(folder)
    return found, lines(found, here=directory.resolve().name)


def _whole(found: Scan) -> dict[str, int]:
    from optistack_hicache.storage.scan import total_bytes

    return {
        "files": len(found.entries),
        "bytes": total_bytes(found.entries),
        "leftovers": len(found.leftovers),
        "others": found.others,
    }
