"""The host: broken plugins are isolated, order is declared, answers are checked."""

from __future__ import annotations

import itertools
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from optistack import hookimpl
from optistack.errors import InputError, PlanRefusedError
from optistack.host import GROUP, Host
from optistack.plugin import Domain, PluginInfo
from optistack.settings import KVLayout


def plugin(name: str, domain: Domain = Domain.OTHER, **fields: Any) -> ModuleType:
    hooks = {key: fields.pop(key) for key in list(fields) if key.startswith("optistack_")}

    def optistack_plugin() -> PluginInfo:
        return PluginInfo(name=name, domain=domain, version="1.0", summary="a test", **fields)

    module = ModuleType(name)
    for hook, function in {"optistack_plugin": optistack_plugin, **hooks}.items():
        setattr(module, hook, hookimpl(function))
    return module


def host_with(*modules: tuple[str, Any]) -> Host:
    host = Host()
    for name, module in modules:
        host.register(module, name=name)
    return host


def test_order_is_by_declaration_then_domain_then_name_whatever_the_registration_order() -> None:
    modules = [
        ("zeta", plugin("zeta", Domain.QUANTIZATION)),
        ("alpha", plugin("alpha", Domain.CACHE)),
        ("mid", plugin("mid", Domain.CACHE, before=("alpha",))),
        ("early", plugin("early", Domain.ROUTING, before=("zeta", "not-installed"))),
    ]
    for order in itertools.permutations(modules):
        assert [p.name for p in host_with(*order).plugins()] == ["mid", "alpha", "early", "zeta"]


def test_a_circle_of_declarations_is_refused_where_both_are_in_the_stack_and_stops_nobody_else() -> None:
    host = host_with(("a", plugin("a", after=("b",))), ("b", plugin("b", after=("a",))))
    with pytest.raises(PlanRefusedError, match="circle"):
        host.select(["a", "b"])
    assert [p.name for p in host.select(["b"])] == ["b"]
    assert [p.name for p in host.plugins()] == ["a", "b"]


def test_a_hook_that_does_not_exist_is_an_error_and_leaves_nothing_registered() -> None:
    host = Host()
    with pytest.raises(InputError, match="no hook optistack_lay_out_kw. Did you mean 'optistack_lay_out_kv'\\?$"):
        host.register(plugin("typo", optistack_lay_out_kw=lambda ctx: None), name="typo")
    assert host.plugins() == []
    host.register(plugin("fine"), name="fine")


def test_a_wrong_argument_name_is_an_error() -> None:
    with pytest.raises(InputError, match="optistack_lay_out_kv has no argument 'context'. Its arguments: ctx.$"):
        Host().register(plugin("bad", optistack_lay_out_kv=lambda context: None), name="bad")


def test_a_wrong_return_type_names_plugin_hook_and_type() -> None:
    host = host_with(("bad", plugin("bad", Domain.KV, optistack_lay_out_kv=lambda ctx: 8)))
    with pytest.raises(PlanRefusedError, match="bad returned int from optistack_lay_out_kv; it must be KVLayout"):
        host.call(host.get("bad"), "optistack_lay_out_kv", KVLayout, ctx=None)


def test_an_exception_in_a_hook_names_the_plugin() -> None:
    def boom(ctx: Any) -> None:
        raise ZeroDivisionError("oh")

    host = host_with(("bad", plugin("bad", Domain.KV, optistack_lay_out_kv=boom)))
    with pytest.raises(PlanRefusedError, match="bad failed in optistack_lay_out_kv: ZeroDivisionError: oh"):
        host.call(host.get("bad"), "optistack_lay_out_kv", KVLayout, ctx=None)


def test_only_the_plugin_that_is_asked_is_called() -> None:
    one = plugin("one", Domain.KV, optistack_lay_out_kv=lambda ctx: KVLayout(dtype="fp8_e4m3"))
    two = plugin("two", Domain.KV, optistack_lay_out_kv=lambda ctx: KVLayout(dtype="nvfp4"))
    host = host_with(("one", one), ("two", two))
    answers = [host.call(host.get(n), "optistack_lay_out_kv", KVLayout, ctx=None).dtype.value for n in ("one", "two")]
    assert answers == ["fp8_e4m3", "nvfp4"]


def test_an_unknown_plugin_suggests_the_nearest_or_how_to_install() -> None:
    host = host_with(("kv-fp8", plugin("kv-fp8")))
    with pytest.raises(InputError, match="'kv-fp9'. Did you mean 'kv-fp8'\\?$"):
        host.get("kv-fp9")
    with pytest.raises(InputError, match=r"In a clone of optistack, run: pip install \./plugins/routing"):
        host.get("routing")
    with pytest.raises(InputError, match="Installed: kv-fp8"):
        host.get("eagle3")


def test_name_and_hook_api_must_agree() -> None:
    with pytest.raises(InputError, match="calls itself other"):
        Host().register(plugin("other"), name="entry")
    with pytest.raises(InputError, match="hook API 99"):
        Host().register(plugin("future", hook_api=99), name="future")


def test_a_plugin_without_identity_is_an_error() -> None:
    with pytest.raises(InputError, match="does not implement optistack_plugin"):
        Host().register(ModuleType("empty"), name="empty")


def test_a_hook_without_its_marker_is_an_error() -> None:
    module = plugin("quiet")
    module.optistack_lay_out_kv = lambda ctx: None  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="optistack_lay_out_kv without @hookimpl"):
        Host().register(module, name="quiet")


def test_one_module_under_two_names_is_an_error_and_the_first_name_keeps_working() -> None:
    module = plugin("one")
    host = host_with(("one", module))
    with pytest.raises(InputError, match="another name stands for already"):
        host.register(module, name="two")
    assert [p.name for p in host.plugins()] == ["one"]


def test_what_a_hook_says_over_several_lines_becomes_one_with_a_way_out() -> None:
    def typo(ctx: Any) -> KVLayout:
        return KVLayout(page_sise=8)  # type: ignore[call-arg]

    def stop(ctx: Any) -> None:
        raise SystemExit("I quit")

    for function, says in (
        (typo, r"KVLayout\.page_sise: Extra inputs are not permitted"),
        (stop, "SystemExit: I quit"),
    ):
        host = host_with(("bad", plugin("bad", Domain.KV, optistack_lay_out_kv=function)))
        with pytest.raises(PlanRefusedError, match=says) as caught:
            host.call(host.get("bad"), "optistack_lay_out_kv", KVLayout, ctx=None)
        assert "\n" not in caught.value.message
        assert "--no-plugin bad" in caught.value.fix


@pytest.mark.parametrize(("body", "says"), [("raise SystemExit('I quit')", "SystemExit: I quit"), ("1 / 0", "ZeroDiv")])
def test_a_module_that_ends_the_process_while_it_is_imported_is_listed_and_the_rest_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, says: str
) -> None:
    (tmp_path / "ends_on_import.py").write_text(body + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    broken = EntryPoint(name="broken", value="ends_on_import", group=GROUP)
    monkeypatch.setattr("optistack.host.entry_points", lambda group: [broken])
    host = Host.from_environment()
    assert says in host.failures[0].error
    with pytest.raises(InputError, match="installed but did not load"):
        host.get("broken")
    host.register(plugin("fine"), name="fine")
