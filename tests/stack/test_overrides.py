"""The command line changes a stack the way the file would, and its mistakes name the option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack.host import Host, LoadFailure
from optistack.stack.document import parse_document
from optistack.stack.loader import load_stack
from optistack.stack.overrides import Overrides, apply_overrides

Write = Callable[[str], Path]
BASE = "model: {checkpoint: a/b}\nplugins:\n  kv-eight:\n    dtype: fp8_e4m3\n"


def test_plugins_are_added_and_taken_out(write: Write, host: Host) -> None:
    spec = load_stack(
        write(BASE),
        host,
        Overrides(plugins=("drafter",), without=("kv-eight",), settings=("drafter.checkpoint=x/y",)),
    )
    assert spec.plugins == {"drafter": {"checkpoint": "x/y"}}


def test_settings_are_yaml_and_reach_plugins_and_sections(write: Write, host: Host) -> None:
    settings = ("kv-eight.dtype=fp8_e5m2", "serving.context_tokens=8192", "parallel.tensor=8", "name=other")
    keys: dict[str, tuple[tuple[str, ...], object]] = {"--backend": (("backend",), "vllm")}
    spec = load_stack(write(BASE), host, Overrides(settings=settings, keys=keys))
    assert spec.plugins["kv-eight"]["dtype"] == "fp8_e5m2"
    assert (spec.serving.context_tokens, spec.parallel.tensor) == (8192, 8)
    assert (spec.name, spec.backend) == ("other", "vllm")


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (Overrides(plugins=("drafer",)), "-p drafer: no plugin is called 'drafer'", "'drafter'"),
        (Overrides(without=("kv-ate",)), "--no-plugin kv-ate", "'kv-eight'"),
        (Overrides(plugins=("drafter",), without=("drafter",)), "contradict each other", "Leave one out"),
        (Overrides(settings=("kv-eight.dtpye=x",)), "--set kv-eight.dtpye=x: plugin kv-eight has no", "'dtype'"),
        (Overrides(settings=("drafter.checkpoint=x",)), "drafter is not in this stack", "-p drafter"),
        (Overrides(settings=("servin.port=1",)), "'servin' is neither", "'serving'"),
        (Overrides(settings=("serving.prt=1",)), "--set serving.prt=1: serving has no key 'prt'", "'port'"),
        (Overrides(settings=("serving.port=x",)), "--set serving.port=x: serving.port must be a whole number", ""),
        (Overrides(settings=("serving.port",)), "is no assignment", "--set serving.key=value"),
        (Overrides(settings=("kv-eight=1",)), "names no option", "kv-eight.option"),
        (Overrides(settings=("serving.port=[",)), "not valid YAML", ""),
        (Overrides(settings=("name.x=1",)), "must be text", ""),
        (Overrides(settings=("kv-eight.dtype.x=1",)), "plugins.kv-eight.dtype has no keys", ""),
        (Overrides(keys={"--node": (("node",), 3)}), "--node 3: node must be text, not 3", ""),
    ],
)
def test_each_mistake_names_the_option(write: Write, host: Host, overrides: Overrides, message: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        load_stack(write(BASE), host, overrides)
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_a_plugin_that_is_there_and_does_not_load_is_not_said_to_be_unknown(write: Write, host: Host) -> None:
    host.failures.append(LoadFailure("broken", "optistack-broken 1", "ImportError: no module named x"))
    host.disabled = ("quiet",)
    for name, says in (("broken", "installed but did not load: ImportError"), ("quiet", "is switched off")):
        with pytest.raises(InputError, match=f"-p {name}: .*{says}"):
            load_stack(write(BASE), host, Overrides(plugins=(name,)))
    with pytest.raises(InputError) as caught:
        load_stack(write(BASE), host, Overrides(plugins=("drafer",)))
    assert caught.value.fix == "Did you mean 'drafter'?"


@given(st.text(max_size=30))
def test_any_text_after_set_is_an_assignment_or_an_input_error(text: str) -> None:
    document = parse_document(BASE, "f.yaml")
    try:
        apply_overrides(document, Overrides(settings=(text,)), ["kv-eight"])
    except InputError as error:
        assert "--set" in error.message
    else:
        assert f"--set {text}" in document.said.values()
