"""Ctrl-C is answered at once, however long it takes to stop."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from optistack.cli import screen
from optistack.cli.interrupts import told_at_once
from optistack.cli.run import _run


def test_an_interrupt_is_told_before_things_are_taken_down(capfd: pytest.CaptureFixture[str]) -> None:
    with told_at_once():
        for said in ("Stopping. Ctrl-C again ends it at once.\n", "Ending it.\n"):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert capfd.readouterr().err == said
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["verify", "conformance"])
def test_every_signal_that_ends_a_command_is_told_alike(
    shell: SimpleNamespace, silent: socket.socket, home: Path, command: str, number: signal.Signals
) -> None:
    stack = Path(__file__).resolve().parents[2] / "stacks" / "kimi-k2.6-b200x4.yaml"
    further = (
        ["--stack", str(stack), "--backend", "sglang"] if command == "verify" else ["--record", str(home / "file")]
    )
    words = [command, "--endpoint", f"http://127.0.0.1:{silent.getsockname()[1]}", *further, "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*shell.argv, *words], text=True, env=shell.env, **pipes) as program:
        try:
            connection, _ = silent.accept()
            program.send_signal(number)
            out, err = program.communicate(timeout=30)
            connection.close()
        finally:
            program.kill()
    assert program.returncode == 130
    assert err.splitlines()[-1] == "Interrupted."
    assert "Traceback" not in err
    assert json.loads(out)["error"] == "Interrupted."


def test_what_to_do_about_an_interruption_is_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    commands = typer.Typer()

    @commands.command()
    def work(json: bool = False) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            screen.note("The same command goes on.")
            raise

    assert _run(commands, "work", ["--json"]) == 130
    said = capsys.readouterr()
    assert json.loads(said.out) == {"error": "Interrupted.", "fix": "The same command goes on."}
    assert said.err == "The same command goes on.\nInterrupted.\n"


AT_IMPORT = """
import os, signal, sys


class Signals:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), {number})


sys.meta_path.insert(0, Signals())
sys.argv = ["optistack", "plugins"]
from optistack.cli import main

main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["optistack.cli.run", "typer.main", "optistack.cli.plugins"])
def test_a_signal_while_modules_are_imported_is_told_like_a_later_one(module: str, number: signal.Signals) -> None:
    code = AT_IMPORT.format(module=module, number=int(number))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_ignored(number: signal.Signals) -> None:
    code = AT_IMPORT.format(module="typer.main", number=int(number))
    code = f"import signal; signal.signal({int(number)}, signal.SIG_IGN)\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
