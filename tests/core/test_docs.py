"""The documentation names every hook with its exact signature."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from optistack import hookspecs, settings
from optistack.cli.run import run
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


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The guide's text, with its plugin installed as pip would install it."""
    text = (DOCS / "writing-a-plugin.md").read_text()
    project = tomllib.loads(re.findall(r"^```toml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)[0])["project"]
    module = next(block for block in blocks_of(text) if "def optistack_plugin" in block)
    (entry,) = project["entry-points"]["optistack.plugins"].items()
    (tmp_path / f"{entry[1]}.py").write_text(module)
    info = tmp_path / f"{entry[1]}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text(f"[optistack.plugins]\n{entry[0]} = {entry[1]}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return text


def blocks_of(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_guides_plan_is_made_as_printed(
    guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "dtype": "bfloat16"}
    sizes = {"hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 1, "num_attention_heads": 64}
    (tmp_path / "config.json").write_text(json.dumps({**draft, **sizes, "vocab_size": 163_840}))
    (printed,) = re.findall(r"`(optistack plan [^`]*)`", guide)
    words = shlex.split(printed.replace("FOLDER", str(tmp_path)))[1:]
    monkeypatch.chdir(DOCS.parent)
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stack"]["speculation"]["method"]["value"] == "eagle3"


def test_the_guides_last_block_works_as_printed(guide: str) -> None:
    names: dict[str, Any] = {}
    exec(blocks_of(guide)[-1], names)
    assert [plugin.name for plugin in names["host"].plugins()] == ["eagle3"]


def test_the_plugin_and_the_settings_of_the_guide_are_python_that_works() -> None:
    blocks = blocks_of((DOCS / "writing-a-plugin.md").read_text())
    module = ModuleType("optistack_eagle3")
    exec(next(block for block in blocks if "def optistack_plugin" in block), vars(module))
    plugin = Host().register(module, name="eagle3")
    assert plugin.hooks == ("optistack_plugin", "optistack_speculate")
    assert set(plugin.info.options.model_fields) == {"draft", "num_draft_tokens"}
    layout = eval(next(block for block in blocks if block.startswith("KVLayout(")), vars(settings))
    assert isinstance(layout, KVLayout)
