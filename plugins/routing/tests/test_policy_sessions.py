"""What the default policy keeps of sessions, and forgets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from plugins.routing.tests.kv_aware_fleet import PLAIN, fleet_of, place, turn

from optistack_routing.policy.base import Reason
from optistack_routing.policy.sessions import SessionMap, Stay


def test_a_prompt_that_was_not_served_is_not_believed_in() -> None:
    ledger = fleet_of(3)
    lease = place(ledger, "s")
    lease.end(1.0, served=False)
    assert place(ledger, "s").choice.predicted_cached_tokens == 0


def test_sessions_expire_when_idle_and_never_while_running() -> None:
    ledger = fleet_of(3)
    turn(ledger, "idle")
    running = place(ledger, "running")
    ledger.policy.expire(1e6)
    assert ledger.policy.sessions() == {1: 1}
    running.end(1e6, served=True)
    ledger.policy.expire(3e6)
    assert ledger.policy.sessions() == {}


def test_the_map_is_bounded_and_the_oldest_makes_room() -> None:
    ledger = fleet_of(3, replace(PLAIN, max_sessions=10))
    for number in range(30):
        turn(ledger, f"s{number}")
    assert ledger.policy.sessions() == {1: 10}
    assert place(ledger, "s29").choice.reason is Reason.HOME
    assert place(ledger, "s0").choice.reason is Reason.PLACED


def test_a_prefix_that_the_pool_has_no_room_for_is_forgotten() -> None:
    ledger = fleet_of(1, replace(PLAIN, kv_tokens=250_000))
    for session in ("a", "b", "c"):
        turn(ledger, session)
    assert place(ledger, "c").choice.predicted_cached_tokens == 100_000
    assert place(ledger, "a").choice.predicted_cached_tokens == 50_000, "the end of the oldest went"


def test_sessions_finished_while_running_do_not_fill_the_pool() -> None:
    ledger = fleet_of(1, replace(PLAIN, kv_tokens=250_000))
    for number in range(20):
        lease = place(ledger, f"s{number}")
        assert ledger.policy.finish_session(f"s{number}")
        lease.end(1.0, served=True)
    turn(ledger, "next")
    turn(ledger, "after")
    assert place(ledger, "next").choice.predicted_cached_tokens == 100_000


def test_the_end_of_a_forgotten_sessions_request_is_not_charged_to_the_next_of_its_name() -> None:
    ledger = fleet_of(1)
    old = place(ledger, "s")
    assert ledger.policy.finish_session("s")
    new = place(ledger, "s")
    old.end(2.0, served=False)
    ledger.policy.expire(1e9)
    assert ledger.policy.sessions() == {1: 1}, "its request still runs"
    new.end(1e9, served=True)
    assert place(ledger, "s", now_s=1e9).choice.predicted_cached_tokens == 100_000


def test_sessions_are_kept_in_the_order_of_their_last_use() -> None:
    ledger = fleet_of(2, replace(PLAIN, max_sessions=2))
    long = place(ledger, "long")
    turn(ledger, "short", now_s=2.0)
    long.end(3.0, served=True)
    turn(ledger, "third", now_s=4.0)
    assert place(ledger, "long", now_s=5.0).choice.reason is Reason.HOME


@given(st.lists(st.tuples(st.sampled_from("pefl"), st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=60))
def test_what_is_counted_by_homes_and_replicas_is_what_the_sessions_have(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    sessions = SessionMap(replace(PLAIN, max_sessions=3, max_homes=2, kv_tokens=100))
    stays: list[Stay] = []
    for step, session, replica, served in steps:
        if step == "p":
            stays.append(sessions.placed(f"s{session}", f"r{replica}", 40, 1.0))
        elif step == "e" and stays:
            sessions.ended(stays.pop(session % len(stays)), 0, 1.0, served=served)
        elif step == "f":
            sessions.forget(f"s{session}")
        elif step == "l":
            sessions.left(f"r{replica}")
        known = sessions._sessions.values()
        assert sessions.by_homes() == Counter(len(one.homes) for one in known)
        for name, here in sessions._at.items():
            assert here == {one for one in known if name in one.homes}
        newest = Counter(one.newest for one in known if one.newest is not None)
        assert {name: count for name, count in sessions.residents.items() if count} == newest
