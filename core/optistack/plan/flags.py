"""Check a launch's flags against the parser of the engine that is installed."""

from __future__ import annotations

from optistack.engines.flags import check_flags
from optistack.launch import Launch
from optistack.plan.engine import Engine
from optistack.plan.plan import FlagCheck


def check_launch(launch: Launch, engine: Engine) -> FlagCheck:
    """The flags that the engine's parser would refuse. Nothing can be said when the engine is not on this machine."""
    if engine.probe is None:
        return FlagCheck(against="")
    words = launch.argv("python", port=8000, folder=".")[1 + len(launch.command) :]
    problems = check_flags(words, engine.probe)
    against = f"{engine.probe.distribution} {engine.probe.version} in {engine.facts.python}"
    return FlagCheck(against=against, problems=tuple(f"{p.message} {p.fix}".strip() for p in problems))
