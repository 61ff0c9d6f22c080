"""The plugin as the host sees it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import optistack_kv_fp8
from optistack.host import Host

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_it_registers_under_its_entry_point_with_every_hook() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    (name,) = project["entry-points"]["optistack.plugins"]
    plugin = Host().register(optistack_kv_fp8, name=name)
    assert plugin.info.version == project["version"]
    assert plugin.hooks == (
        "optistack_before_start",
        "optistack_commands",
        "optistack_conformance",
        "optistack_lay_out_kv",
        "optistack_plugin",
        "optistack_probe",
        "optistack_rules",
    )


def test_every_option_is_described() -> None:
    options = Host().register(optistack_kv_fp8, name="kv-fp8").info.options
    assert all(field.description for field in options.model_fields.values())
    assert options.model_json_schema()["additionalProperties"] is False


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import optistack_kv_fp8, sys; print(*{'httpx', 'torch', 'numpy', 'yaml', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
