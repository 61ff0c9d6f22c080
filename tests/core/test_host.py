"""The host: broken plugins are isolated, order is declared, answers are checked."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest

from optistack import hookimpl
from optistack.errors import InputError, PlanRefusedError
from optistack.host import Host
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


def test_a_circle_of_declarations_is_refused() -> None:
    host = host_with(("a", plugin("a", after=("b",))), ("b", plugin("b", after=("a",))))
    with pytest.raises(PlanRefusedError, match="circle"):
        host.plugins()


def test_a_hook_that_does_not_exist_is_an_error_and_leaves_nothing_registered() -> None:
    host = Host()
    with pytest.raises(InputError, match="optistack_lay_out_kw"):
        host.register(plugin("typo", optistack_lay_out_kw=lambda ctx: None), name="typo")
    assert host.plugins() == []
    host.register(plugin("fine"), name="fine")


def test_a_wrong_argument_name_is_an_error() -> None:
    with pytest.raises(InputError, match="context"):
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
    with pytest.raises(InputError, match="pip install optistack-eagle3"):
        host.get("eagle3")


def test_name_and_hook_api_must_agree() -> None:
    with pytest.raises(InputError, match="calls itself other"):
        Host().register(plugin("other"), name="entry")
    with pytest.raises(InputError, match="hook API 99"):
        Host().register(plugin("future", hook_api=99), name="future")


def test_a_plugin_without_identity_is_an_error() -> None:
    with pytest.raises(InputError, match="does not implement optistack_plugin"):
        Host().register(ModuleType("empty"), name="empty")


def test_one_module_under_two_names_is_an_error_of_that_entry() -> None:
    module = plugin("one")
    host = host_with(("one", module))
    with pytest.raises(InputError, match="Plugin two cannot be registered"):
        host.register(module, name="two")
    assert [found.name for found in host.plugins()] == ["one"]
