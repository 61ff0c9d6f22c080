"""The policy as settings: defaults with reasons, and options that a policy has no use for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from optistack.errors import InputError
from optistack.settings import Serving
from optistack_routing.policy.parameters import Parameters


def routing(world: Any) -> dict[str, Any]:
    values = dict(world.resolve().values())
    return {path.removeprefix("routing."): value.value for path, value in values.items() if path.startswith("routing.")}


def test_the_default_keeps_sessions_near_their_kv_and_spills(world: Any) -> None:
    assert routing(world.working(concurrency=7)) == {
        "policy": "kv-aware",
        "session_header": "x-session-id",
        "target_concurrency": 7,
        "max_homes": Parameters().max_homes,
        "overload_margin": Parameters().overload_margin,
        "session_idle_s": Parameters().session_idle_s,
    }


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        ("affinity", {"policy", "session_header", "target_concurrency", "parameters"}),
        ("least-loaded", {"policy", "target_concurrency"}),
        ("round-robin", {"policy", "target_concurrency"}),
        ("random", {"policy", "target_concurrency"}),
    ],
)
def test_a_policy_has_the_settings_that_mean_something_to_it(world: Any, policy: str, fields: set[str]) -> None:
    assert set(routing(world.asking(policy=policy))) == fields


def test_affinity_bounds_the_load_of_a_replica(world: Any) -> None:
    assert routing(world.asking(policy="affinity"))["parameters"] == {"load_bound": 1.25}
    assert routing(world.asking(policy="affinity", load_bound=2))["parameters"] == {"load_bound": 2}


def test_several_replicas_get_a_router_and_one_where_it_is_asked_for(world: Any) -> None:
    assert "front" not in routing(world)
    assert routing(world.asking(front=True))["front"] is True
    assert routing(world.spread(replicas=4))["front"] is True
    assert routing(world.spread(replicas=4).asking(front=False))["front"] is False


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_precise_mode_has_the_engine_publish_its_events_where_nobody_else_reads(world: Any, backend: str) -> None:
    precise = world.by(backend).asking(precise=True, front=True).resolve()
    (argument,) = [argument for argument in precise.arguments if argument.backend == backend]
    asked = json.loads(argument.value)
    assert (argument.name, asked["publisher"]) == ("--kv-events-config", "zmq")
    assert (asked["endpoint"], asked["replay_endpoint"]) == ("ipc://{folder}/kv-events", "ipc://{folder}/kv-replay")
    assert asked.get("enable_kv_cache_events") is (True if backend == "vllm" else None)


def test_precise_mode_is_the_routers(world: Any) -> None:
    with pytest.raises(InputError, match="none is started.*front"):
        world.asking(precise=True).resolve()
    with pytest.raises(InputError, match="means nothing to the policy least-loaded"):
        world.asking(precise=True, front=True, policy="least-loaded").resolve()


def test_options_are_firm_wishes_and_everything_has_a_reason(world: Any) -> None:
    stack = world.asking(max_homes=3, overload_margin=4, session_idle_s=60, session_header="X-My-Session").resolve()
    assert (stack.routing.max_homes.value, stack.routing.max_homes.default) == (3, False)
    assert stack.routing.session_header.value == "x-my-session"
    for path, value in stack.values():
        assert all(origin.why for origin in value.origins), path


@pytest.mark.parametrize("policy", ["affinity", "least-loaded", "round-robin", "random"])
@pytest.mark.parametrize("option", ["max_homes", "overload_margin", "session_idle_s"])
def test_an_option_without_a_use_is_refused(world: Any, policy: str, option: str) -> None:
    with pytest.raises(InputError, match=f"{option} of plugin routing means nothing to the policy {policy}.*kv-aware"):
        world.asking(policy=policy, **{option: 2}).resolve()


def test_a_session_header_needs_a_policy_with_sessions(world: Any) -> None:
    world.asking(policy="affinity", session_header="x-s").resolve()
    with pytest.raises(InputError, match="kv-aware or affinity"):
        world.asking(policy="round-robin", session_header="x-s").resolve()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"session_header": "X-Request-ID"}, "new in each request"),
        ({"session_header": "not a header"}, "not the name of an HTTP header"),
        ({"policy": "sticky"}, "kv-aware"),
        ({"max_homes": 0}, "greater than or equal to 1"),
        ({"session_idle_s": 0}, "greater than 0"),
        ({"target": 5}, "no option 'target'.*target_concurrency"),
        ({"parameters": {"split_request": 5}}, "no parameter 'split_request'.*split_requests"),
        ({"parameters": {"max_homes": 5}}, "option of its own"),
        ({"load_bound": 0.5}, "greater than or equal to 1"),
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
