"""``optistack conformance k2vv`` and ``optistack conformance lm-eval``: other people's evaluations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optistack.cli import options

if TYPE_CHECKING:
    from optistack_conformance.adapters.lm_eval import Outcomes
    from optistack_conformance.client import Client

Endpoint = Annotated[str, typer.Option("--endpoint", metavar="URL", help="The server under test.")]
TIMEOUT_S = 3_600.0


def k2vv(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Results, in the verifier's own format.")],
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="Send the samples there, and write --out.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option("--samples", metavar="FILE", help="The verifier's samples.jsonl, which you download.")
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option("--reference", metavar="FILE", help="Results of a run of the reference; four or more."),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests at once.")] = 8,
    json: options.Json = False,
) -> None:
    """Run the samples of the Kimi K2 Vendor Verifier, and judge the tool calls.

    With --endpoint and --samples the answers are written to --out; without, --out is judged as it is. The threshold for
    F1 is what reruns of the reference lose against their first run.
    """
    from optistack.cli import screen
    from optistack.errors import InputError
    from optistack.files import check_writable, writes_through
    from optistack_conformance.adapters import k2vv as verifier
    from optistack_conformance.report import EXIT_CODES
    from optistack_conformance.runner import check_installed

    if (endpoint is None) != (samples is None):
        raise InputError("Samples are sent to a server.", fix="Give both --endpoint and --samples, or neither.")
    check_installed()
    if endpoint is not None:
        check_writable("--out", out)
        if writes_through(out):
            raise InputError(f"--out {out} is no file, and it is read again.", fix="Name a regular file.")
    runs = [verifier.read_results(path) for path in reference or ()]
    threshold = verifier.f1_threshold(runs) if runs else None
    if endpoint is not None and samples is not None:
        requests = verifier.read_samples(samples)
        with screen.ScreenProgress() as progress, _client(endpoint) as client:
            progress.step(f"Sending {len(requests)} samples to {endpoint}")
            answers = verifier.run_samples(client, requests, concurrency=concurrency)
            verifier.check_answered(answers)
            verifier.write_lines(out, answers)
    results = verifier.read_results(out)
    figures = verifier.compare(runs[0] if runs else results, results)
    found: dict[str, Any] = {
        "compared": figures.compared,
        "tool_calls": figures.triggered,
        "schema_accuracy": figures.schema_accuracy if figures.triggered else None,
    }
    if threshold is None:
        _show({**found, "verdict": "not judged: give --reference four times or more"}, json)
        return
    verdict = verifier.judge(figures, threshold)
    judged = {"f1": figures.f1, "f1_threshold": threshold, "precision": figures.precision, "recall": figures.recall}
    _show({**found, **judged, "verdict": verdict.value}, json)
    raise typer.Exit(EXIT_CODES.get(verdict, 0))


def lm_eval(
    endpoint: Endpoint,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help='A Python that has it: pip install "lm_eval[api]".')
    ],
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="URL", help="The same model without what is under test.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", metavar="NAME", help="Of the harness. Default: our own items.")
    ] = None,
    include: Annotated[
        Path | None, typer.Option("--include", metavar="DIR", help="Folder with task files of your own.")
    ] = None,
    lossy: Annotated[
        str | None, typer.Option("--lossy", metavar="NAME", help="fp8-kv or nvfp4: how much may be lost.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Where the harness writes its results.")
    ] = Path("lm-eval"),
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="quick or full: our own items.")] = "full",
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests at once.")] = 4,
    json: options.Json = False,
) -> None:
    """Run lm-evaluation-harness on a server, and judge it against a baseline, document by document.

    Tasks are of the kind that generates text. Without a baseline the harness's own figures are shown.
    """
    from optistack.errors import InputError
    from optistack_conformance.adapters import lm_eval as harness
    from optistack_conformance.evals.items import load_items
    from optistack_conformance.outcomes import worst
    from optistack_conformance.report import EXIT_CODES
    from optistack_conformance.runner import check_installed
    from optistack_conformance.selection import PROFILES
    from optistack_conformance.statistics.paired import MARGINS

    if lossy is not None and lossy not in MARGINS:
        raise InputError(f"--lossy {lossy} is not known.", fix=f"One of {', '.join(MARGINS)}.")
    if profile not in PROFILES:
        raise InputError(f"--profile {profile} is not known.", fix=f"One of {', '.join(PROFILES)}.")
    check_installed()
    servers = {"candidate": endpoint, **({"baseline": baseline} if baseline else {})}
    models = {url: _model(url) for url in servers.values()}
    harness.check_python(python)
    tasks = list(task or ())
    if not tasks:
        include = output / "task"
        tasks = [harness.export_task(load_items(PROFILES[profile]), include)]

    def run(url: str, name: str) -> list[Outcomes]:
        return harness.run(python, url, models[url], tasks, output / name, include=include, concurrency=concurrency)

    found = _in_turn(servers, run)
    shown: dict[str, Any] = {one.task: {"candidate": one.metrics} for one in found["candidate"]}
    if baseline is None:
        _show(shown, json)
        return
    verdicts = []
    for ours, theirs in zip(found["candidate"], found["baseline"], strict=True):
        verdict, pairs = harness.judge(theirs, ours, None if lossy is None else MARGINS[lossy])
        verdicts.append(verdict)
        counts = {"items": pairs.n, "lost": pairs.lost, "gained": pairs.gained}
        shown[ours.task] |= {"baseline": theirs.metrics, **counts, "verdict": verdict.value}
    verdict = worst(verdicts)
    _show({**shown, "verdict": verdict.value}, json)
    raise typer.Exit(EXIT_CODES.get(verdict, 0))


def _model(url: str) -> str:
    with _client(url) as client:
        return client.model()


def _in_turn(servers: dict[str, str], run: Any) -> dict[str, list[Outcomes]]:
    from optistack.cli import screen

    found = {}
    with screen.ScreenProgress() as progress:
        for name, url in servers.items():
            progress.step(f"Running the harness on the {name}, {url}")
            found[name] = run(url, name)
    return found


def _client(url: str) -> Client:
    from optistack_conformance.client import Client

    return Client(url, api_key=os.environ.get(options.API_KEY_VARIABLE), timeout_s=TIMEOUT_S)


def _show(found: dict[str, Any], as_json: bool) -> None:
    from optistack.cli import screen

    if as_json:
        screen.print_json(found)
        return
    for name, value in found.items():
        if isinstance(value, dict):
            print(name)
            for key, inner in value.items():
                print(f"  {key}: {_text(inner)}")
        else:
            print(f"{name}: {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
