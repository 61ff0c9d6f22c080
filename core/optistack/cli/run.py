"""Run the program: every way it can end becomes an exit code, and every error one sentence and its fix.

0 done; 1 a check failed; 2 wrong input or refused plan; 3 the engine did not start; 130 interrupted; 141 when the
reader of a pipe went away.
"""

from __future__ import annotations

import difflib
import errno
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from optistack import __version__
from optistack.apply.termination import termination_raises
from optistack.cli import stdout
from optistack.cli.commands import EPILOG, Commands, check_values
from optistack.errors import READ_PERMISSION, OptistackError, PlanRefusedError

WRONG_INPUT = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
BUG = 1

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Why a write fails that is right, wherever it is: the disk or the quota is full, or a file may not be as large."""

app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    add_completion=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"optistack {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; goes anywhere.")] = False,
) -> None:
    """Apply a stack of inference optimizations to an engine, and prove what took effect.

    A stack file (optistack.yaml, or --stack FILE) says which model, node, workload and plugins.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run ``optistack ARGUMENTS`` and return its exit code."""
    return _run(app, "optistack", arguments)


def run_alone(commands: typer.Typer, package: str) -> int:
    """Run a plugin's ``commands`` as ``python -m PACKAGE``, with sys.argv, and return the exit code: for an engine's
    environment, where the plugin may be on the path without an entry point."""
    return _run(commands, f"python -m {package}", sys.argv[1:])


def _run(commands: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    from optistack.cli import screen

    screen.begin()
    if not stdout.prepare():
        screen.print_error("Standard output is closed.", "Send it to a file or a program, or to /dev/null.")
        return WRONG_INPUT
    debug, words = _take_debug(arguments)
    try:
        code = _invoke(commands, name, words, debug)
        stdout.finish()
    except BrokenPipeError:
        stdout.give_up()
        return PIPE_CLOSED
    except OSError as error:
        # In --debug too: where the text was printed from is of no use.
        if not stdout.is_failure(error):
            raise
        stdout.give_up()
        reason = (error.strerror or str(error)).rstrip(".")
        screen.print_error(f"Standard output cannot be written: {reason}.", "Send it somewhere else.")
        return WRONG_INPUT
    return code


def _invoke(commands: typer.Typer, name: str, words: list[str], debug: bool) -> int:
    try:
        with termination_raises():
            check_values(words)
            command = typer.main.get_command(commands)
            # Not command.main(), which turns exceptions into exit codes of its own.
            with command.make_context(name, list(words)) as context:
                command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort) as interruption:
        from optistack.cli import screen

        if "--json" in words and not screen.has_printed_json():
            fix = " ".join(getattr(interruption, "__notes__", ()))
            screen.print_json({"error": "Interrupted.", "fix": fix})
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error)
            return 0
        if debug or stdout.is_failure(error):
            raise
        return _report(error, name, words)
    return 0


def _take_debug(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """``--debug`` may stand before or behind the command; what follows ``--`` belongs to somebody else."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    ours = [word for word in words[:end] if word != "--debug"]
    return len(ours) < end, ours + words[end:]


def _report(error: Exception, name: str, words: Sequence[str]) -> int:
    code, message, fix, more = _described(error, name, words)
    from optistack.cli import screen

    if "--json" in words and not screen.has_printed_json():
        screen.print_json({"error": message, "fix": fix, **more})
    screen.print_error(message, fix)
    return code


def _only_near_options(error: Any) -> None:
    """Of the options that typer would suggest for an unknown one, keep those that look like a slip of the pen."""
    if getattr(error, "possibilities", None):
        error.possibilities = difflib.get_close_matches(error.option_name, error.possibilities, cutoff=0.8)


def _place_fix(path: str) -> str:
    from optistack import paths

    folders = (("XDG_CACHE_HOME", paths.cache_dir()), ("XDG_STATE_HOME", paths.state_dir()))
    variable = next((name for name, folder in folders if Path(path).is_relative_to(folder)), "")
    return f"{variable} puts it elsewhere." if variable else "Check the path and its permissions."


def _is_gone() -> bool:
    """Whether the working directory was removed."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _described(error: Exception, name: str, words: Sequence[str]) -> tuple[int, str, str, dict[str, Any]]:
    """Exit code, sentence, fix, and what else ``--json`` tells."""
    if isinstance(error, PlanRefusedError) and error.rule:
        from optistack.cli.views.rules import degradable

        message, fix = f"{error.message} (rule {error.rule})", degradable(error.fix, bool(error.plugin))
        return error.exit_code, message, fix, {"rule": error.rule, "plugin": error.plugin}
    if isinstance(error, OptistackError):
        problems = [vars(problem) for problem in getattr(error, "problems", ())]
        return error.exit_code, error.message, error.fix, {"problems": problems} if problems else {}
    usage = getattr(error, "format_message", None)  # typer's own errors about the command line
    if usage is not None:
        if usage().endswith("is not readable."):
            return WRONG_INPUT, usage(), READ_PERMISSION, {}
        _only_near_options(error)
        context = getattr(error, "ctx", None)
        begun = " ".join([name, *(word for word in words[:1] if not word.startswith("-"))])
        command = context.command_path if context is not None else begun
        return WRONG_INPUT, usage(), f"`{command} --help` shows how it goes.", {}
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = f"{error.filename}: " if error.filename else ""
        return (
            WRONG_INPUT,
            f"{place}Writing ended: {error.strerror}.",
            "Make room, or lift the limit (`ulimit -f`).",
            {},
        )
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_gone():
        return WRONG_INPUT, "The folder that this command was given in is gone.", "Run it in one that is there.", {}
    if isinstance(error, OSError) and error.filename:
        return WRONG_INPUT, f"{error.filename}: {error.strerror}.", _place_fix(str(error.filename)), {}
    fix = "This is a bug in optistack; --debug shows where."
    return BUG, f"optistack failed: {type(error).__name__}: {error}", fix, {}
