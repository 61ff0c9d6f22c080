"""The default policy when replicas come and go: which sessions move, and whose end is charged to whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from plugins.routing.tests.kv_aware_fleet import PLAIN, fleet_of, load, place, turn

from optistack_routing.policy.base import Reason, Request
from optistack_routing.policy.kv_aware import KvAware


def test_scale_up_moves_no_session_and_piles_no_cold_prompt_on_the_new_replica() -> None:
    ledger = fleet_of(4, replace(PLAIN, slow_start_s=60.0))
    homes = {f"s{number}": turn(ledger, f"s{number}", now_s=100.0).choice.replica for number in range(40)}
    busy = [place(ledger, f"s{number}", now_s=100.0) for number in range(16)]
    ledger.join("new", 101.0)
    for lease in busy:
        lease.end(101.0, served=True)
    assert {session: turn(ledger, session, now_s=102.0).choice.replica for session in homes} == homes
    cold = [ledger.place(Request(f"n{number}", 100_000), 103.0) for number in range(6)]
    assert [lease.choice.replica for lease in cold if lease].count("new") == 1, "one at a time while it is young"
    for lease in cold:
        assert lease is not None
        lease.first_byte()
    assert place(ledger, "next", now_s=104.0).choice.replica == "new", "and preferred once that one is done"


@given(
    loads=st.lists(st.integers(0, 9), min_size=2, max_size=6),
    prompts=st.lists(st.integers(1, 150_000), min_size=1, max_size=12),
    at_once=st.integers(0, 5),
    since_s=st.floats(0, 59),
)
def test_a_newcomer_gets_only_sessions_that_would_have_moved_anyway(
    loads: list[int], prompts: list[int], at_once: int, since_s: float
) -> None:
    fleets = []
    for joins in (False, True):
        ledger = fleet_of(len(loads), replace(PLAIN, slow_start_s=60.0))
        for number, tokens in enumerate(prompts):
            turn(ledger, f"s{number}", tokens, now_s=100.0)
        for number, requests in enumerate(loads):
            load(ledger, f"r{number}", requests)
        for _ in range(at_once):
            place(ledger, "s0", prompts[0], now_s=100.0)
        if joins:
            ledger.join("new", 101.0)
        fleets.append(ledger)
    before, after = fleets
    for number, tokens in enumerate(prompts):
        request = Request(f"s{number}", tokens + 1_000)
        old, new = (ledger.policy.choose(request, ledger.fleet, 101.0 + since_s) for ledger in (before, after))
        assert old is not None
        assert new is not None
        if new.replica == "new":
            assert old.reason in (Reason.SPILLED, Reason.SPLIT)
        else:
            assert new == old


def test_small_prompts_do_not_run_to_a_new_replica_until_it_is_old() -> None:
    ledger = fleet_of(2, replace(PLAIN, slow_start_s=60.0))
    for number in range(10):
        turn(ledger, f"s{number}", 1_000, now_s=100.0)
    busy = [place(ledger, f"s{number}", 1_000, now_s=100.0) for number in range(10)]
    ledger.join("new", 101.0)
    more = [ledger.policy.choose(Request(f"s{number}", 1_000), ledger.fleet, 102.0) for number in range(10)]
    assert {choice.reason for choice in more if choice} == {Reason.HOME}
    assert turn(ledger, "begun-since", 1_000, now_s=103.0).choice.replica == "new"
    later = ledger.policy.choose(Request("s0", 1_000), ledger.fleet, 162.0)
    assert later is not None
    assert (later.replica, later.reason) == ("new", Reason.SPILLED)
    for lease in busy:
        lease.end(163.0, served=True)


def test_draining_and_leaving_replicas_lose_their_sessions_only() -> None:
    ledger = fleet_of(4)
    homes = {f"s{number}": turn(ledger, f"s{number}").choice.replica for number in range(40)}
    ledger.fleet.replicas["r0"].accepts = False
    after = {session: turn(ledger, session).choice for session in homes}
    assert all(
        (choice.reason is Reason.FAILED_OVER or session not in homes) == (homes[session] == "r0")
        or choice.replica == homes[session]
        for session, choice in after.items()
    )
    assert all(choice.replica != "r0" for choice in after.values())
    assert all(after[session].replica == home for session, home in homes.items() if home != "r0")
    ledger.leave("r1", 2.0)
    assert all(turn(ledger, session).choice.replica not in ("r0", "r1") for session in homes)


def test_a_replica_that_comes_back_starts_with_no_residents() -> None:
    ledger = fleet_of(2)
    for number in range(10):
        turn(ledger, f"s{number}")
    ledger.leave("r0", 1.0)
    ledger.join("r0", 1.0)
    for number in range(10):
        turn(ledger, f"s{number}")
    homes = Counter(turn(ledger, f"n{number}").choice.replica for number in range(20))
    assert homes["r0"] > 0 < homes["r1"]
    for number in range(10):
        ledger.policy.finish_session(f"s{number}")
    for number in range(20):
        ledger.policy.finish_session(f"n{number}")
    assert {turn(ledger, "a").choice.replica, turn(ledger, "b").choice.replica} == {"r0", "r1"}


def test_the_end_of_a_request_of_a_replica_that_left_is_not_charged_to_the_one_that_came() -> None:
    ledger = fleet_of(1)
    old = place(ledger, "s")
    ledger.leave("r0", 1.0)
    ledger.join("r0", 1.0)
    new = place(ledger, "s")
    old.end(2.0, served=False)
    assert place(ledger, "s").choice.predicted_cached_tokens == 100_000
    policy = ledger.policy
    assert isinstance(policy, KvAware)
    assert policy._loads._replicas["r0"].in_flight == 2
    new.end(2.0, served=True)
