"""The documentation names every hook with its exact signature."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from optistack import hookspecs

HOOKS_PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"


def signatures_in_code() -> set[str]:
    hooks = {
        name: function
        for name, function in vars(hookspecs).items()
        if name.startswith("optistack_") and inspect.isfunction(function)
    }
    return {name + str(inspect.signature(function)).replace("'", "") for name, function in hooks.items()}


def test_the_page_and_the_code_name_the_same_hooks_with_the_same_signatures() -> None:
    documented = set(re.findall(r"^### `(optistack_.*)`$", HOOKS_PAGE.read_text(), flags=re.MULTILINE))
    assert documented == signatures_in_code()


def test_every_hook_has_a_docstring() -> None:
    for name in (signature.split("(")[0] for signature in signatures_in_code()):
        assert inspect.getdoc(getattr(hookspecs, name)), name
