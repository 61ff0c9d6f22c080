"""The default policy: where a session goes, and when it leaves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from plugins.routing.tests.kv_aware_fleet import PLAIN, fleet_of, load, place, turn

from optistack_routing.policy.base import Choice, Reason, Request


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


def test_a_retry_avoids_the_replica_that_failed() -> None:
    ledger = fleet_of(3)
    home = turn(ledger, "s").choice.replica
    again = place(ledger, "s", avoid=frozenset([home])).choice
    assert again.replica != home
    assert ledger.place(Request("s", 1, avoid=frozenset(["r0", "r1", "r2"])), 1.0) is None


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
