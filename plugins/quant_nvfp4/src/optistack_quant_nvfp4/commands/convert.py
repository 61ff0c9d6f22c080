"""``optistack quant-nvfp4 convert``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from optistack_quant_nvfp4.convert.plan import Method, OutputForm, Plan, Rest

if TYPE_CHECKING:
    from optistack_quant_nvfp4.convert.job import Job


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The checkpoint: a folder or cache:NAME.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write; it must not exist.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What becomes NVFP4; repeatable. routed-experts, shared-experts, dense-mlp, attention, draft; "
            "all-experts, linear (these four); router, embeddings, head, vision if you ask; or a pattern of names."
        ),
    ],
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Layers of the scope to leave out; repeatable.")
    ] = None,
    format: Annotated[
        OutputForm | None,
        typer.Option(help="Metadata to write. Default: the source's where it is NVFP4, else modelopt."),
    ] = None,
    method: Annotated[Method, typer.Option(help="How block scales are chosen.")] = "amax",
    input_scales: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Calibrated largest inputs by module, JSON or safetensors.")
    ] = None,
    weight_only: Annotated[bool, typer.Option("--weight-only", help="Write no input scales (W4A16).")] = False,
    rest: Annotated[
        Rest, typer.Option(help="FP8 and INT4 layers outside of the scope: as they are, or BF16.")
    ] = "keep",
    min_sqnr_db: Annotated[
        float, typer.Option(help="A layer below this is wrong, and the folder does not appear.")
    ] = MIN_SQNR_DB,
    device: DeviceOption = "cpu",
    workers: Annotated[int | None, typer.Option(min=1, max=32, help="Threads. Default: one a core.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Convert parts of a checkpoint to NVFP4, one slab of rows at a time.

    Stopped or killed, the same command goes on where it was. The folder appears when it is whole and read back.
    """
    check_min_sqnr_db(min_sqnr_db)
    check_device(device)
    from optistack.cli.screen import note
    from optistack_quant_nvfp4.convert.job import Job, check_destination, left_behind
    from optistack_quant_nvfp4.convert.results import metadata_of

    folder = checkpoint_folder(source)
    if (left := left_behind(destination, remove=not dry_run)) is not None:
        note(f"{destination} is whole; its conversion was ended before {left.name} beside it was taken away.")
    check_destination(folder, destination)
    plan = planned(folder, scope, exclude or [], format, method, input_scales, weight_only=weight_only, rest=rest)
    metadata_of(plan)  # what the engines could not be told is refused before anything is written
    job = Job(plan, destination)
    if dry_run:
        _show(plan, job, None, as_json=json)
        return
    need_torch()
    from optistack_quant_nvfp4.codec import NORMALISATION
    from optistack_quant_nvfp4.convert.results import recipe_of

    recipe = recipe_of(plan, scope, exclude or [], rest, NORMALISATION[method])
    try:
        rows, took_s = _run(plan, job, recipe, device, workers, min_sqnr_db)
    except KeyboardInterrupt:
        if job.checkpoint.is_dir():
            note(f"The same command goes on with what {job.folder} has.")
        raise
    _show(plan, job, {"recipe": recipe, "layers": rows, "took_s": round(took_s, 1)}, as_json=json)


def planned(
    folder: Path,
    scope: list[str],
    exclude: list[str],
    form: OutputForm | None,
    method: Method,
    calibration: Path | None,
    *,
    weight_only: bool,
    rest: Rest,
) -> Plan:
    """The conversion that the options describe. InputError when it cannot be.

    What of ``calibration`` is of no use is told on stderr.
    """
    from optistack.cli.screen import note
    from optistack.errors import InputError
    from optistack_quant_nvfp4.convert.checkpoint import read_checkpoint
    from optistack_quant_nvfp4.convert.input_scales import input_scales, read_calibration, unknown_names
    from optistack_quant_nvfp4.convert.plan import make_plan
    from optistack_quant_nvfp4.convert.scope import choose
    from optistack_quant_nvfp4.convert.tensor_file import Reader

    if weight_only and calibration is not None:
        raise InputError("--weight-only and --input-scales contradict each other.", fix="Give one of them.")
    checkpoint = read_checkpoint(folder)
    words = [word for given in scope for word in given.split(",") if word]
    chosen = choose(checkpoint, words, exclude)
    scales = {}
    if not weight_only:
        with Reader(checkpoint.files) as reader:
            given = read_calibration(calibration) if calibration else None
            if given and (unused := unknown_names(checkpoint, given)):
                note(unused)
            scales = input_scales(checkpoint, chosen, given, reader)
    if form is None:
        kept = next((layer for layer in checkpoint.layers.values() if layer.form == "nvfp4"), None)
        form = "compressed-tensors" if kept and "weight_global_scale" in kept.tensors else "modelopt"
    return make_plan(checkpoint, chosen, scales, form=form, method=method, rest=rest)


def _run(
    plan: Plan, job: Job, recipe: dict[str, Any], device: str, workers: int | None, min_sqnr_db: float
) -> tuple[list[dict[str, Any]], float]:
    """Write the checkpoint; the rows of its report, worst first, and the seconds that it took.

    CheckFailedError when a layer errs more than ``min_sqnr_db`` allows. What was written stays in the working folder.
    """
    import time

    from optistack.cli.screen import ScreenProgress
    from optistack_quant_nvfp4.convert.results import check_errors, other_bytes, worst_first, write_results
    from optistack_quant_nvfp4.convert.run import Runner, default_workers

    started = time.monotonic()
    threads = workers or default_workers()
    where = device_named(device)  # before the folder is touched
    with ScreenProgress() as progress, job.open(other_bytes(plan)):
        resumed = sum(job.finished(file) is not None for file in plan.files)
        again = f", {resumed} of them finished before" if resumed else ""
        progress.step(f"Converting {len(plan.chosen)} layers in {len(plan.files)} files with {threads} threads{again}")
        rows = Runner(plan, job, where, threads, progress.detail).run()
        check_errors(rows, min_sqnr_db, job.folder)
        progress.step(f"Writing metadata and report of {job.destination}")
        write_results(plan, job.checkpoint, recipe, rows)
        job.publish()
    return [dict(row) for row in worst_first(rows)], time.monotonic() - started


def _show(plan: Plan, job: Job, result: dict[str, Any] | None, *, as_json: bool) -> None:
    import shutil

    from optistack.cli.screen import print_json, show
    from optistack_quant_nvfp4.convert.input_scales import summary
    from optistack_quant_nvfp4.convert.results import other_bytes
    from optistack_quant_nvfp4.convert.sizes import sizes
    from optistack_quant_nvfp4.convert.tables import error_table, size_table

    parts = sizes(plan)
    needed, free = plan.tensor_bytes + other_bytes(plan), shutil.disk_usage(job.destination.parent).free
    if as_json:
        document = {
            "destination": str(job.destination),
            "format": plan.form,
            "method": plan.method,
            "activations": "w4a16" if plan.weight_only else "w4a4",
            "input_scales": summary(plan.scales),
            "components": [asdict(one) for one in parts],
            "needed_bytes": needed,
            "free_bytes": free,
        }
        print_json(document | (result or {}))
        return
    show(size_table(parts))
    inputs = "W4A16, weights alone" if plan.weight_only else "W4A4"
    lines = [f"{plan.form}, {plan.method}, {inputs}"]
    lines += [f"input scales of {count} layers: {origin}" for origin, count in summary(plan.scales).items()]
    lines.append(f"{needed / 2**30:.2f} GiB to write, {free / 2**30:.2f} GiB free at {job.destination.parent}")
    show("\n".join(lines))
    if result is None:
        if needed > free:
            job.check_space(other_bytes(plan))
        return
    show(error_table(result["layers"]))
    show(f"{job.destination}: written and read back in {result['took_s']:.1f} s")
