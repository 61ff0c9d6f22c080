"""Every way to install that a page or a message names is there in a clone, which is where the packages come from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = (
    "README.md",
    "docs/*.md",
    "stacks/*.yaml",
    "plugins/*/README.md",
    "plugins/*/src/**/*.py",
    "*/optistack*/**/*.py",
)
NAMED = re.compile(r"(?<!/)\.(/plugins/[a-z0-9_]+)?(?:\[([a-z0-9,]+)\])")
FROM_AN_INDEX = re.compile(r"pip install '?optistack[-\[]")


def texts() -> Iterator[tuple[Path, str]]:
    for place in PLACES:
        for path in sorted(ROOT.glob(place)):
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def test_every_extra_that_is_named_with_its_folder_is_there() -> None:
    found = set()
    for path, text in texts():
        for line in text.splitlines():
            for folder, extras in NAMED.findall(line) if "pip install" in line else ():
                project = tomllib.loads((ROOT / f".{folder}" / "pyproject.toml").read_text())["project"]
                assert set(extras.split(",")) <= project["optional-dependencies"].keys(), (path, line)
                found.add((folder, extras))
    assert ("/plugins/dflash", "train") in found and ("", "conformance") in found


def test_nothing_is_told_to_come_from_an_index_that_has_it_not() -> None:
    assert [str(path) for path, text in texts() if FROM_AN_INDEX.search(text)] == []
