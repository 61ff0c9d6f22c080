"""The documentation names every hook with its exact signature."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

from optistack import hookspecs
from optistack.host import Host

DOCS = Path(__file__).parents[2] / "docs"
HOOKS_PAGE = DOCS / "hooks.md"


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


def test_the_plugin_of_the_page_is_one() -> None:
    page = (DOCS / "writing-a-plugin.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    module = ModuleType("optistack_eagle3")
    exec(next(block for block in blocks if "optistack_plugin" in block), vars(module))
    plugin = Host().register(module, name="eagle3")
    assert plugin.hooks == ("optistack_plugin", "optistack_speculate")
    assert set(plugin.info.options.model_fields) == {"draft", "num_draft_tokens"}
