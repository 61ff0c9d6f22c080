"""Check a launch's flags against the parser of the engine: the installed one's, or what was written down of it."""

from __future__ import annotations

from optistack.engines.flags import check_flags
from optistack.launch import Launch
from optistack.plan.engine import Engine
from optistack.plan.plan import FlagCheck


def check_launch(launch: Launch, engine: Engine) -> FlagCheck:
    """The flags that the engine's parser would refuse; no opinion on a version of which nothing is known."""
    known = engine.probe or engine.snapshot
    if known is None:
        return FlagCheck(against="", unchecked=_unknown(engine))
    words = launch.argv("python", port=8000, folder=".")[1 + len(launch.command) :]
    problems = check_flags(words, known)
    version = f"{known.distribution} {known.version}"
    against = f"{version} in {engine.facts.python}" if engine.probe else f"the snapshot of {version}"
    return FlagCheck(against=against, problems=tuple(f"{p.message} {p.fix}".strip() for p in problems))


def _unknown(engine: Engine) -> str:
    absent = f"{engine.facts.backend} {engine.facts.version} is not installed here"
    # The flags of a neighbouring version would refuse what this one has, and take what it lacks.
    others = f"; there are snapshots of {', '.join(engine.snapshots)}" if engine.snapshots else ""
    return f"{absent}, and no snapshot was taken of it{others}"
