"""What ``optistack bench`` and ``optistack bench sweep`` do with the options that they were given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from optistack.cli import options
from optistack.cli.bench_options import Given

if TYPE_CHECKING:
    from optistack_bench.result import Result
    from optistack_bench.settings import Settings
    from optistack_bench.target import Target


def measure(given: Given, users: Sequence[int], rate: str | None = None) -> Result:
    """Measure what the options ``given`` say, under each number of ``users``.

    Raises InputError for options that do not go together.
    """
    from optistack.errors import InputError

    if (given.endpoint is None) == (not given.stack):
        raise InputError("What is to be measured?", fix="Give either --endpoint URL or --stack FILE.")
    _check_of_use(given)
    settings = settings_of(given)
    from optistack.cli import screen
    from optistack_bench.load import Loop

    loops = [Loop(users=number, rate=_rate(rate)) for number in users]
    settings.check_loads(loops)
    with _folder(given.out) as out, _told_what_is_kept(out), screen.ScreenProgress() as progress:
        if given.endpoint is not None:
            from optistack_bench.run import run_endpoint

            target = _target(given.endpoint, given.engine, given.gpus)
            return run_endpoint(target, settings, loops, out=out, progress=progress)
        from optistack_bench.on_stack import run_stacks

        return run_stacks(
            _choices(given),
            settings,
            loops,
            baseline=not given.no_baseline,
            allow_degraded=given.allow_degraded,
            out=out,
            progress=progress,
        )


def settings_of(given: Given) -> Settings:
    """The options of a command as ``Settings``. Raises InputError for what does not go together."""
    from optistack.errors import InputError
    from optistack_bench.installed import check_installed

    check_installed()
    from optistack_bench.settings import Settings

    divide = given.divide
    if divide is not None and divide != "auto" and not (divide.isdecimal() and int(divide)):
        raise InputError(f"--divide {divide} is no power of two.", fix="Give 1, 2, 4, ..., or auto.")
    return Settings(
        workload=given.workload,
        trace=given.trace,
        sessions=given.sessions,
        turns=given.turns,
        domains=tuple(given.domain or ("code", "prose")),
        divide=None if divide is None else 0 if divide == "auto" else int(divide),
        think_limit_s=given.think_limit,
        repeats=given.repeats,
        warmup=given.warmup,
        seed=given.seed,
        prefill_only=given.prefill_only,
        session_header=given.session_header,
        timeout_s=given.timeout,
        context_tokens=given.model_context,
        max_errors=given.max_errors,
        min_seconds=given.min_seconds,
        chat=given.chat,
        tools=given.tools,
    )


def _check_of_use(given: Given) -> None:
    """Raise InputError for an option that goes with the other kind of thing to measure."""
    from optistack.errors import InputError

    of_stack = {
        "--backend": given.backend,
        "--engine-python": given.engine_python,
        "--set": given.setting,
        "--no-baseline": given.no_baseline,
        "--allow-degraded": given.allow_degraded,
    }
    of_endpoint = {"--engine": given.engine, "--gpus": given.gpus}
    here, there, of_other = (
        ("--stack", "--endpoint", of_endpoint) if given.endpoint is None else ("--endpoint", "--stack", of_stack)
    )
    idle = [option for option, value in of_other.items() if value]
    if idle:
        raise InputError(
            f"{' and '.join(idle)} {'goes' if len(idle) == 1 else 'go'} with {there}, and {here} is given.",
            fix=f"Leave {'it' if len(idle) == 1 else 'them'} out, or give {there} instead.",
        )


LEAST_RATE = 0.001


def _rate(rate: str | None) -> float | str | None:
    from optistack.errors import InputError

    if rate is None or rate == "recorded":
        return rate
    try:
        value = float(rate)
    except ValueError:
        value = 0.0
    if not LEAST_RATE <= value < 1e6:
        raise InputError(
            f"--rate {rate} is no number of sessions a second from {LEAST_RATE} to a million.",
            fix="Give one like 0.5, or `recorded`.",
        )
    return value


def _choices(given: Given) -> list[options.Choice]:
    """The stacks that were named, each with what goes for all of them."""
    return [
        options.Choice(
            stack=path,
            backend=given.backend,
            engine_python=given.engine_python,
            settings=tuple(given.setting or ()),
        )
        for path in given.stack or ()
    ]


def _target(endpoint: str, engines: list[str] | None, gpus: int | None) -> Target:
    from optistack_bench.target import Target

    return Target("endpoint", endpoint.rstrip("/"), tuple(engines or ()), gpus=gpus or 1)


@contextmanager
def _told_what_is_kept(out: Path | None) -> Iterator[None]:
    """Within the block, an interruption says what was written so far."""
    try:
        yield
    except KeyboardInterrupt:
        from optistack.cli import screen
        from optistack_bench.result import JOURNAL_FILE

        journal = out and out / JOURNAL_FILE
        if journal and journal.exists():
            requests = journal.read_bytes().count(b"\n")
            screen.note(
                f"Kept in {out}: result.json, marked as partial, and {JOURNAL_FILE} with {requests:,} requests."
            )
        raise


@contextmanager
def _folder(out: Path | None) -> Iterator[Path | None]:
    """``out``, made if it is not there, and taken away again when nothing was put in it.

    Raises InputError when it holds another result."""
    from optistack.errors import InputError

    if out is None:
        yield None
        return
    if out.is_symlink() and not out.exists():
        raise InputError(
            f"--out {out} is a link to {out.readlink()}, which is not there.", fix="Make that folder, or name another."
        )
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is no folder.", fix="Name a folder; it is made.")
    from optistack_bench.result import JOURNAL_FILE, RESULT_FILE

    for name in (RESULT_FILE, JOURNAL_FILE):
        if (out / name).exists():
            raise InputError(
                f"--out {out} holds a result already: {name}.", fix="Name another folder, or move the file away."
            )
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be made: {error.strerror}.", fix="Name another folder.") from error
    try:
        yield out
    finally:
        for folder in made:
            if any(folder.iterdir()):
                break
            folder.rmdir()
