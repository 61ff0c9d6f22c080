"""The documentation names every hook with its exact signature."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

from optistack import hookspecs, settings
from optistack.host import Host
from optistack.settings import KVLayout

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


def test_the_plugin_and_the_settings_of_the_guide_are_python_that_works() -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (DOCS / "writing-a-plugin.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    module = ModuleType("optistack_eagle3")
    exec(next(block for block in blocks if "def optistack_plugin" in block), vars(module))
    plugin = Host().register(module, name="eagle3")
    assert plugin.hooks == ("optistack_plugin", "optistack_speculate")
    assert set(plugin.info.options.model_fields) == {"draft", "num_draft_tokens"}
    layout = eval(next(block for block in blocks if block.startswith("KVLayout(")), vars(settings))
    assert isinstance(layout, KVLayout)
