"""The plugin as the host sees it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import optistack_routing
from optistack.host import Host

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

EVERY_HOOK = tuple(
    f"optistack_{hook}"
    for hook in ("commands", "conformance", "front", "plugin", "probe", "probe_front", "route", "rules")
)


def test_it_registers_under_its_entry_point_with_every_hook() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    (name,) = project["entry-points"]["optistack.plugins"]
    plugin = Host().register(optistack_routing, name=name)
    assert plugin.info.version == project["version"]
    assert plugin.hooks == EVERY_HOOK


def test_every_option_is_described() -> None:
    options = Host().register(optistack_routing, name="routing").info.options
    assert all(field.description for field in options.model_fields.values())
    assert options.model_json_schema()["additionalProperties"] is False


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import optistack_routing, sys; print(*{'httpx', 'torch', 'numpy', 'yaml', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
