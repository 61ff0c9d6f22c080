"""``optistack quant-nvfp4 verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from optistack.cli.devices import check_device
from optistack_quant_nvfp4.commands.app import (
    MIN_SQNR_DB,
    DeviceOption,
    JsonOption,
    app,
    check_min_sqnr_db,
    checkpoint_folder,
    device_named,
    need_torch,
)


@app.command()
def verify(
    checkpoint: Annotated[str, typer.Argument(metavar="CKPT", help="What convert wrote: a folder or cache:NAME.")],
    against: Annotated[str, typer.Option(metavar="SRC", help="What it was made from.")],
    min_sqnr_db: Annotated[
        float, typer.Option(help="A layer below this is wrong; a wrong scale gives about 0.")
    ] = MIN_SQNR_DB,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> None:
    """Read a converted checkpoint back and compare every tensor with the source's. Exit code 1 where one is wrong."""
    check_min_sqnr_db(min_sqnr_db)
    check_device(device)
    need_torch()
    where = device_named(device)
    from optistack.cli.screen import ScreenProgress, note, print_json, show
    from optistack.errors import CheckFailedError, InputError
    from optistack_quant_nvfp4.convert.checkpoint import read_checkpoint
    from optistack_quant_nvfp4.convert.compare import compare
    from optistack_quant_nvfp4.convert.tables import error_table

    found, source = read_checkpoint(checkpoint_folder(checkpoint)), read_checkpoint(checkpoint_folder(against))
    if found.folder.resolve() == source.folder.resolve():
        raise InputError("CKPT and SRC are the same folder.", fix="Give --against what the checkpoint was made from.")
    with ScreenProgress() as progress:
        progress.step(f"Comparing {found.folder} with {source.folder}")
        rows, same, wrong = compare(found, source, where, min_sqnr_db, progress.detail)
    if json:
        print_json({"layers": rows, "same_tensors": same, "wrong": wrong})
    else:
        show(error_table(rows))
        show(f"{len(rows)} layers converted, {same} tensors the same, {len(wrong)} wrong")
        for line in wrong[:20]:
            note(line)
    if wrong:
        raise CheckFailedError(
            f"{found.folder} is not what {source.folder} gives: {wrong[0]}.", fix="Convert it again."
        )
