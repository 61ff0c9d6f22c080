"""``optistack conformance``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optistack.cli import evaluations, options
from optistack.cli.commands import HELP

if TYPE_CHECKING:
    from optistack.engines.progress import Progress
    from optistack_conformance.report import Report
    from optistack_conformance.selection import Selection

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)
app.command(name="k2vv")(evaluations.k2vv)
app.command(name="lm-eval")(evaluations.lm_eval)


@app.callback(invoke_without_command=True)
def conformance(
    context: typer.Context,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="The server under test: http://127.0.0.1:8000.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="URL", help="The same model without what is under test.")
    ] = None,
    baseline_file: Annotated[
        Path | None, typer.Option("--baseline-file", metavar="FILE", help="A recorded baseline instead of a URL.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Measure the endpoint as a baseline, and stop.")
    ] = None,
    stack: Annotated[
        Path | None, typer.Option("--stack", metavar="FILE", help="Start this stack without and with its plugins.")
    ] = None,
    backend: options.Backend = None,
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="quick or full: the sample sizes.")
    ] = "quick",
    lossy: Annotated[
        str | None, typer.Option("--lossy", metavar="NAME", help="fp8-kv or nvfp4: tier 2 judges what is lost.")
    ] = None,
    tier: Annotated[list[int] | None, typer.Option("--tier", help="Only this tier: 0, 1 or 2. Repeatable.")] = None,
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="PATTERN", help="Only such cases: 'contract/stop-*'. Repeatable."),
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", "-p", metavar="NAME", help="Run its own cases. Repeatable.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="DIR", help="To count prompt tokens independently.")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option("--kv-dtype", metavar="NAME", help="Where the engine does not say: fp8_e4m3.")
    ] = None,
    acceptance_reference: Annotated[
        float | None, typer.Option("--acceptance-reference", help="Acceptance length that the drafter has elsewhere.")
    ] = None,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="The engine promises it: greedy text must be equal.")
    ] = False,
    tier_expected: Annotated[
        bool, typer.Option("--expect-tier", help="A cache tier lies below the device: a hit from it must be seen.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of prompts and samples.")] = 0,
    allow_degraded: options.AllowDegraded = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML page.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    json: options.Json = False,
) -> None:
    """Check that an engine answers as the plain model does.

    Exit code 0 pass, 1 fail, 4 inconclusive: too small to tell. Without a baseline only what one server can show by
    itself is judged. A run that is interrupted (130), or whose server goes away, still writes its reports, with that
    state and never as a pass.
    """
    if context.invoked_subcommand is not None:
        return
    from optistack.cli import screen
    from optistack.errors import InputError
    from optistack.files import check_writable
    from optistack_conformance.selection import read_selection

    if (endpoint is None) == (stack is None):
        raise InputError("What is to be checked?", fix="Give either --endpoint URL or --stack FILE.")
    if stack is not None and (baseline is not None or baseline_file is not None):
        raise InputError("With --stack the stack without its plugins is the baseline.", fix="Leave the other one out.")
    if stack is None and backend is not None:
        raise InputError("--backend is for a stack.", fix="Leave it out: a server is what it is.")
    if checkpoint is not None and not checkpoint.is_dir():
        raise InputError(f"--checkpoint {checkpoint} is no folder.", fix="Give the folder with tokenizer.json.")
    for option, path in (("--record", record), ("--html", html), ("--junit", junit)):
        if path is not None:
            check_writable(option, path)
    given = {
        "profile": profile,
        "lossy": lossy,
        "tiers": tuple(tier or ()),
        "cases": tuple(case or ()),
        "plugins": tuple(plugin or ()),
        "checkpoint": str(checkpoint) if checkpoint else None,
        "kv_dtype": kv_dtype,
        "acceptance_reference": acceptance_reference,
        "batch_invariant": batch_invariant,
        "tier_expected": tier_expected,
        "seed": seed,
        "baseline": baseline,
        "baseline_file": str(baseline_file) if baseline_file else None,
    }
    settings = {key: value for key, value in given.items() if value not in (None, ()) and value is not False}
    selection = read_selection({"endpoint": endpoint or "http://127.0.0.1", **settings}, option=_option)
    with screen.ScreenProgress() as progress:
        if record is not None:
            if endpoint is None:
                raise InputError("Only a server can be recorded.", fix="Give --endpoint URL.")
            _record(record, selection, progress)
            return
        if stack is not None:
            report = _on_stack(options.Choice(stack=stack, backend=backend), settings, allow_degraded, junit, progress)
        else:
            from optistack.verify.endpoint import first_answer_of
            from optistack_conformance.runner import check_cases, check_installed, run_suite

            check_installed()
            check_cases(selection)
            progress.step(f"Running the cases on {first_answer_of(selection.endpoint)}")
            report = run_suite(selection, junit=junit, progress=progress.detail)
    if html is not None:
        from optistack.files import write_file
        from optistack_conformance.reports.html import html_page

        write_file(html, html_page(report))
    _show(report, json)
    raise typer.Exit(report.exit_code)


def _option(setting: str) -> str:
    """How a setting of the suite is written on the command line: ``tiers`` is --tier, given several times."""
    singular = setting.removesuffix("s") if setting in ("tiers", "cases", "plugins") else setting
    return "--" + singular.replace("_", "-")


def _record(path: Path, selection: Selection, progress: Progress) -> None:
    import os

    from optistack.verify.endpoint import first_answer_of
    from optistack_conformance.client import Client
    from optistack_conformance.reference import measure_reference, save_reference
    from optistack_conformance.runner import check_installed

    check_installed()
    key = os.environ.get(selection.api_key_variable)
    with Client(selection.endpoint, api_key=key, timeout_s=selection.timeout_s) as client:
        progress.step(f"Measuring {first_answer_of(selection.endpoint)}")
        save_reference(measure_reference(client, selection), path)
    progress.step(f"Wrote {path}")


def _on_stack(
    chosen: options.Choice, settings: dict[str, Any], allow_degraded: bool, junit: Path | None, progress: Progress
) -> Report:
    from optistack.cli.ready import from_stack
    from optistack_conformance.on_stack import run_stack
    from optistack_conformance.runner import check_installed

    check_installed()
    progress.step("Planning with plugins and without")
    whole = from_stack(chosen, progress, allow_degraded=allow_degraded, preflight=True)
    names = tuple(use.name for use in whole.plan.plugins)
    plain = from_stack(
        dataclasses.replace(chosen, without=names), progress, allow_degraded=allow_degraded, preflight=True
    )
    return run_stack(whole, plain, settings, junit=junit, progress=progress)


def _show(report: Report, as_json: bool) -> None:
    from optistack.cli import screen

    if as_json:
        screen.print_json(report.as_json())
        return
    from optistack_conformance.reports.terminal import report_view

    screen.show(*report_view(report, wide=screen.is_pipe()))
