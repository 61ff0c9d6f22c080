"""The default policy: where a session goes, and when it leaves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from optistack_routing.policy.base import Choice, Reason, Request
from optistack_routing.policy.factory import make_policy
from optistack_routing.policy.kv_aware import KvAware
from optistack_routing.policy.ledger import Lease, Ledger
from optistack_routing.policy.parameters import Parameters
from optistack_routing.policy.sessions import SessionMap, Stay

PLAIN = Parameters(rehomes_per_s=0.0, slow_start_s=0.0)


def fleet_of(replicas: int, parameters: Parameters = PLAIN) -> Ledger:
    ledger = Ledger(make_policy("kv-aware", parameters))
    for number in range(replicas):
        ledger.join(f"r{number}", 0.0)
    return ledger


def place(ledger: Ledger, session: str | None, tokens: int = 100_000, now_s: float = 1.0, **more: object) -> Lease:
    lease = ledger.place(Request(session, tokens, **more), now_s)  # type: ignore[arg-type]  # the test names the fields
    assert lease is not None
    lease.first_byte()
    return lease


def turn(ledger: Ledger, session: str, tokens: int = 100_000, now_s: float = 1.0) -> Lease:
    lease = place(ledger, session, tokens, now_s)
    lease.end(now_s, served=True)
    return lease


def load(ledger: Ledger, replica: str, requests: int) -> None:
    ledger.fleet.replicas[replica].in_flight += requests


def test_a_session_comes_back_to_its_prefix() -> None:
    ledger = fleet_of(5)
    home = turn(ledger, "s").choice.replica
    again = turn(ledger, "s", 110_000)
    assert (again.choice.replica, again.choice.reason) == (home, Reason.HOME)
    assert again.choice.predicted_cached_tokens == 100_000


def test_a_prompt_of_unknown_length_comes_back_too() -> None:
    ledger = fleet_of(5)
    home = turn(ledger, "s", 0).choice.replica
    assert turn(ledger, "s", 0).choice == Choice(home, Reason.HOME)


def test_new_sessions_are_spread_though_nothing_is_running() -> None:
    ledger = fleet_of(4)
    homes = Counter(turn(ledger, f"s{number}").choice.replica for number in range(400))
    assert set(homes.values()) == {100}


def test_a_long_prompt_stays_where_a_short_one_leaves() -> None:
    ledger = fleet_of(3)
    long, short = turn(ledger, "long", 150_000).choice.replica, turn(ledger, "short", 3_000).choice.replica
    load(ledger, long, 4)
    load(ledger, short, 4)
    assert place(ledger, "long", 151_000).choice.replica == long
    left = place(ledger, "short", 3_100).choice
    assert left.replica not in (long, short)
    assert left.reason is Reason.SPILLED


def test_an_overloaded_home_gives_way_to_the_other_before_a_cold_replica() -> None:
    ledger = fleet_of(4)
    first = turn(ledger, "s").choice.replica
    load(ledger, first, 30)
    second = turn(ledger, "s", 105_000).choice
    assert second.reason is Reason.SPILLED
    load(ledger, first, -30)
    load(ledger, second.replica, 10)
    back = turn(ledger, "s", 106_000).choice
    assert (back.replica, back.reason) == (first, Reason.OTHER_HOME)
    assert back.predicted_cached_tokens == 100_000


def test_a_thick_session_is_split_and_its_homes_stay_few() -> None:
    ledger = fleet_of(20, replace(PLAIN, max_homes=3))
    for number in range(100):
        turn(ledger, f"other{number}")
    leases = [place(ledger, "thick") for _ in range(8)]
    counts = Counter(lease.choice.replica for lease in leases)
    assert len(counts) >= 2
    assert max(counts.values()) <= 5
    assert any(lease.choice.reason is Reason.SPLIT for lease in leases)
    for lease in leases:
        lease.end(2.0, served=True)
    turn(ledger, "thick")
    assert ledger.policy.finish_session("thick")
    assert max(ledger.policy.sessions()) <= 3
    whole = fleet_of(20, replace(PLAIN, split_requests=1000))
    for number in range(100):
        turn(whole, f"other{number}")
    assert len({place(whole, "thick").choice.replica for _ in range(8)}) == 1


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


def test_cold_prompts_do_not_queue_on_a_replica_while_another_has_room() -> None:
    ledger = fleet_of(2, replace(PLAIN, cold_prefill_tokens=150_000, pending_weight=0.0, session_weight=0.0))
    load(ledger, "r1", 3)
    names = [ledger.place(Request(f"n{number}", 100_000), 1.0) for number in range(4)]
    assert [lease.choice.replica for lease in names if lease] == ["r0", "r0", "r1", "r1"]


def test_idle_sessions_leave_a_replica_that_stays_crowded_at_a_bounded_rate() -> None:
    parameters = replace(PLAIN, rehomes_per_s=0.05, rehome_margin=2.0, tokens_per_request=1.0)
    ledger = fleet_of(4, parameters)
    homes = {f"s{number}": turn(ledger, f"s{number}", now_s=0.0).choice.replica for number in range(40)}
    crowded = [session for session, home in homes.items() if home == "r0"]
    busy = [place(ledger, session, now_s=0.0) for session in crowded[:6]]
    at_once = [turn(ledger, session, now_s=1.0).choice.reason for session in crowded[6:]]
    assert Reason.REHOMED not in at_once, "a peak is not yet an imbalance"
    later = [turn(ledger, session, now_s=600.0).choice for session in crowded[6:] * 3]
    moved = [choice for choice in later if choice.reason is Reason.REHOMED]
    assert len(moved) == 1
    assert moved[0].replica != "r0"
    assert any(turn(ledger, s, now_s=660.0).choice.reason is Reason.REHOMED for s in crowded[6:])
    for lease in busy:
        lease.end(661.0, served=True)


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


def test_a_retry_avoids_the_replica_that_failed() -> None:
    ledger = fleet_of(3)
    home = turn(ledger, "s").choice.replica
    again = place(ledger, "s", avoid=frozenset([home])).choice
    assert again.replica != home
    assert ledger.place(Request("s", 1, avoid=frozenset(["r0", "r1", "r2"])), 1.0) is None


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


def test_a_block_index_is_believed_over_what_was_sent() -> None:
    ledger = fleet_of(3)
    home = turn(ledger, "s").choice.replica
    other = next(name for name in ledger.fleet.replicas if name != home)
    choice = place(ledger, "s", cached_tokens={home: 0, other: 64_000}).choice
    assert (choice.replica, choice.predicted_cached_tokens) == (other, 64_000)


def test_requests_without_a_session_go_by_prefix_else_by_load() -> None:
    ledger = fleet_of(4)
    first = place(ledger, None, 4_000, prefix=b"head")
    first.end(1.0, served=True)
    assert place(ledger, None, 4_000, prefix=b"head").choice.replica == first.choice.replica
    ledger = fleet_of(4)
    assert len({place(ledger, None).choice.replica for _ in range(4)}) == 4
    assert ledger.policy.sessions() == {}


def test_a_full_kv_pool_counts_as_load() -> None:
    ledger = fleet_of(2)
    ledger.fleet.replicas["r0"].kv_utilisation = 0.99
    assert [place(ledger, f"s{number}").choice.replica for number in range(3)] == ["r1"] * 3


def test_sessions_finished_while_running_do_not_fill_the_pool() -> None:
    ledger = fleet_of(1, replace(PLAIN, kv_tokens=250_000))
    for number in range(20):
        lease = place(ledger, f"s{number}")
        assert ledger.policy.finish_session(f"s{number}")
        lease.end(1.0, served=True)
    turn(ledger, "next")
    turn(ledger, "after")
    assert place(ledger, "next").choice.predicted_cached_tokens == 100_000


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


def test_an_index_that_knows_nothing_scatters_no_session() -> None:
    for known in ({}, {"nobody": 5}):
        ledger = fleet_of(4)
        homes = []
        for number in range(4):
            lease = place(ledger, "s", 100_000 + number, cached_tokens=known)
            lease.end(2.0, served=True)
            homes.append(lease.choice.replica)
        assert len(set(homes)) == 1


def test_what_is_being_computed_is_believed_before_the_index_has_it() -> None:
    ledger = fleet_of(4)
    running = place(ledger, "s")
    empty = dict.fromkeys(ledger.fleet.replicas, 0)
    assert place(ledger, "s", cached_tokens=empty).choice.replica == running.choice.replica
    other = fleet_of(4)
    turn(other, "s")
    assert place(other, "s", cached_tokens=empty).choice.predicted_cached_tokens == 0, "it was evicted since"


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


def test_sessions_are_kept_in_the_order_of_their_last_use() -> None:
    ledger = fleet_of(2, replace(PLAIN, max_sessions=2))
    long = place(ledger, "long")
    turn(ledger, "short", now_s=2.0)
    long.end(3.0, served=True)
    turn(ledger, "third", now_s=4.0)
    assert place(ledger, "long", now_s=5.0).choice.reason is Reason.HOME


def test_a_move_that_finds_no_room_uses_up_no_allowance() -> None:
    parameters = replace(PLAIN, rehomes_per_s=0.05, rehome_margin=2.0, tokens_per_request=1.0, cold_prefill_tokens=1)
    ledger = fleet_of(2, parameters)
    homes = {f"s{number}": turn(ledger, f"s{number}", now_s=0.0).choice.replica for number in range(20)}
    crowded = [session for session, home in homes.items() if home == "r0"]
    busy = [place(ledger, session, now_s=0.0) for session in crowded[:6]]
    other = ledger.fleet.replicas["r1"]
    other.pending_prefill_tokens = 10  # no cold prompt is taken
    assert turn(ledger, crowded[7], now_s=600.0).choice.reason is not Reason.REHOMED
    other.pending_prefill_tokens = 0
    assert turn(ledger, crowded[8], now_s=600.0).choice.reason is Reason.REHOMED
    for lease in busy:
        lease.end(601.0, served=True)


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
