"""The JUnit file of a run: pytest's, whole or not there, and with what a run that was broken off has to say."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from optistack.files import write_file
from optistack_conformance.report import State

SUITE = "optistack-conformance"


@contextmanager
def room_for(junit: Path | None) -> Iterator[Path | None]:
    """Where pytest may write what ``finish`` makes ``junit`` of; None when none is wanted. Gone after the block."""
    if junit is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="optistack-junit-") as folder:
        yield Path(folder, "junit.xml")


def finish(written: Path, junit: Path, state: State, ended: str) -> None:
    """Make ``junit`` of what pytest wrote. A run that is not complete gets a case that is an error, so that nobody who
    reads the file takes it for a pass."""
    try:
        root = ElementTree.parse(written).getroot()
    except (OSError, ElementTree.ParseError):  # pytest was broken off before it wrote
        root = ElementTree.Element("testsuites")
    suite = root.find("testsuite")
    if suite is None:
        counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), "0")
        suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts})
    if state is not State.COMPLETE:
        # pytest lists the case that was under way, without counting it: it would be read as one that passed.
        for unfinished in suite.findall("testcase")[int(suite.get("tests", "0")) :]:
            suite.remove(unfinished)
        case = ElementTree.SubElement(suite, "testcase", {"classname": "run", "name": state.value, "time": "0"})
        ElementTree.SubElement(case, "error", {"message": ended})
        for name in ("tests", "errors"):
            suite.set(name, str(int(suite.get(name, "0")) + 1))
    text = ElementTree.tostring(root, encoding="unicode")
    write_file(junit, f'<?xml version="1.0" encoding="utf-8"?>{text}\n')
