"""The policy as settings: defaults with reasons, and options that a policy has no use for."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.errors import InputError
from optistack.settings import Serving


def routing(world: Any) -> dict[str, Any]:
    values = dict(world.resolve().values())
    return {path.removeprefix("routing."): value.value for path, value in values.items() if path.startswith("routing.")}


def test_the_default_keeps_sessions_near_their_kv_and_spills(world: Any) -> None:
    assert routing(world.working(concurrency=7)) == {
        "policy": "kv-aware",
        "session_header": "x-session-id",
        "target_concurrency": 7,
        "max_homes": 2,
        "overload_margin": 2,
        "session_idle_s": 1800.0,
    }


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        ("affinity", {"policy", "session_header", "target_concurrency", "max_homes", "session_idle_s"}),
        ("least-loaded", {"policy", "target_concurrency"}),
        ("round-robin", {"policy", "target_concurrency"}),
        ("random", {"policy", "target_concurrency"}),
    ],
)
def test_a_policy_has_the_settings_that_mean_something_to_it(world: Any, policy: str, fields: set[str]) -> None:
    assert set(routing(world.asking(policy=policy))) == fields


def test_affinity_has_one_home(world: Any) -> None:
    assert routing(world.asking(policy="affinity"))["max_homes"] == 1


def test_options_are_firm_wishes_and_everything_has_a_reason(world: Any) -> None:
    stack = world.asking(max_homes=3, overload_margin=4, session_idle_s=60, session_header="X-My-Session").resolve()
    assert (stack.routing.max_homes.value, stack.routing.max_homes.default) == (3, False)
    assert stack.routing.session_header.value == "x-my-session"
    for path, value in stack.values():
        assert all(origin.why for origin in value.origins), path


@pytest.mark.parametrize("policy", ["affinity", "least-loaded", "round-robin", "random"])
@pytest.mark.parametrize("option", ["max_homes", "overload_margin"])
def test_an_option_without_a_use_is_refused(world: Any, policy: str, option: str) -> None:
    with pytest.raises(InputError, match=f"{option} of plugin routing means nothing to the policy {policy}.*kv-aware"):
        world.asking(policy=policy, **{option: 2}).resolve()


@pytest.mark.parametrize("option", [{"session_header": "x-s"}, {"session_idle_s": 5}])
def test_session_options_need_a_policy_with_sessions(world: Any, option: dict[str, Any]) -> None:
    world.asking(policy="affinity", **option).resolve()
    with pytest.raises(InputError, match="kv-aware or affinity"):
        world.asking(policy="round-robin", **option).resolve()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"session_header": "X-Request-ID"}, "new in each request"),
        ({"session_header": "not a header"}, "not the name of an HTTP header"),
        ({"policy": "sticky"}, "kv-aware"),
        ({"max_homes": 0}, "greater than or equal to 1"),
        ({"session_idle_s": 0}, "greater than 0"),
        ({"target": 5}, "no option 'target'.*target_concurrency"),
    ],
)
def test_bad_options_are_refused_by_name(world: Any, option: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        world.asking(**option).resolve()


def test_prefix_caching_is_suggested_where_sessions_are_kept(world: Any) -> None:
    assert world.resolve().serving.prefix_caching.value is True
    assert not world.asking(policy="random").resolve().serving.prefix_caching.is_set
    off = world.beside(Serving(prefix_caching=False)).resolve().serving.prefix_caching
    assert off.value is False  # the stack file may switch it off: a rule speaks of it
