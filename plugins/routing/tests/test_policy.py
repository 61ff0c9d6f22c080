"""What every policy promises, and what each one is for."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack_routing.policy.base import Reason, Request
from optistack_routing.policy.factory import POLICIES, make_policy
from optistack_routing.policy.ledger import Lease, Ledger
from optistack_routing.policy.parameters import Parameters


def fleet_of(name: str, replicas: int, parameters: Parameters | None = None, *, joined_s: float = -1e6) -> Ledger:
    ledger = Ledger(make_policy(name, parameters or Parameters(), seed=1))
    for number in range(replicas):
        ledger.join(f"http://10.0.0.{number}:8000", joined_s)
    return ledger


def place(ledger: Ledger, session: str | None, tokens: int = 10_000, now_s: float = 0.0, **more: object) -> Lease:
    lease = ledger.place(Request(session, tokens, **more), now_s)  # type: ignore[arg-type]  # the test names the fields
    assert lease is not None
    return lease


def serve(ledger: Ledger, session: str | None, tokens: int = 10_000, now_s: float = 0.0, **more: object) -> Lease:
    lease = place(ledger, session, tokens, now_s, **more)
    lease.end(now_s + 1, served=True)
    return lease


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["place", "place", "place", "first", "end", "fail", "join", "leave", "close", "open", "finish"]
        ),
        st.integers(0, 7),
        st.integers(0, 200_000),
    ),
    max_size=80,
)


@pytest.mark.parametrize("name", POLICIES)
@given(steps=STEPS, pool=st.sampled_from([None, 300_000]))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_counts_return_to_zero_and_a_ready_replica_is_found(
    name: str, steps: list[tuple[str, int, int]], pool: int | None
) -> None:
    parameters = Parameters(kv_tokens=pool, max_sessions=5, session_idle_s=20.0)
    ledger, twin = fleet_of(name, 3, parameters), fleet_of(name, 3, parameters)
    out: list[tuple[Lease, Lease]] = []
    for step, (what, which, tokens) in enumerate(steps):
        now_s = float(step)
        fleet = ledger.fleet
        names = list(fleet.replicas)
        if what == "place":
            avoid = frozenset(names[:1]) if tokens % 5 == 0 else frozenset[str]()
            session = None if which == 7 else f"s{which}"
            request = Request(session, tokens, prefix=b"p" if tokens % 2 else None, avoid=avoid)
            able = {replica.name for replica in fleet if replica.accepts and replica.name not in avoid}
            lease, same = ledger.place(request, now_s), twin.place(request, now_s)
            assert (lease is None) == (not able)
            if lease is not None and same is not None:
                assert lease.choice.replica in able
                assert 0 <= lease.choice.predicted_cached_tokens <= tokens
                assert lease.choice == same.choice, "a policy is a function of what it was told"
                out.append((lease, same))
        elif what in ("first", "end", "fail") and out:
            pair = out[which % len(out)] if what == "first" else out.pop(which % len(out))
            for lease in pair:
                if what == "first":
                    lease.first_byte()
                else:
                    lease.end(now_s, served=what == "end")
        for one in (ledger, twin):
            if what == "join":
                one.join(f"extra-{which}", now_s)
            elif what == "leave" and names:
                one.leave(names[which % len(names)], now_s)
            elif what in ("close", "open") and names:
                one.fleet.replicas[names[which % len(names)]].accepts = what == "open"
            elif what == "finish":
                one.policy.finish_session(f"s{which}")
            one.policy.expire(now_s)
        assert sum(ledger.policy.sessions().values()) <= 5
    for pair in out:
        for lease in pair:
            lease.end(1e3, served=True)
    assert all(replica.in_flight == 0 and replica.pending_prefill_tokens == 0 for replica in ledger.fleet)
    assert ledger.in_flight == 0
    ledger.policy.expire(2e3)
    assert not ledger.policy.sessions()


@pytest.mark.parametrize("name", POLICIES)
def test_no_replica_starves(name: str) -> None:
    ledger = fleet_of(name, 8)
    used = Counter(place(ledger, f"s{number}").choice.replica for number in range(400))
    assert len(used) == 8


def test_an_unknown_policy_is_named_with_those_that_exist() -> None:
    with pytest.raises(InputError, match="no policy 'kvaware'.*kv-aware"):
        make_policy("kvaware")


def test_round_robin_takes_turns_and_random_depends_on_its_seed_alone() -> None:
    ledger = fleet_of("round-robin", 3)
    assert [place(ledger, None).choice.replica[-6] for _ in range(4)] == ["0", "1", "2", "0"]
    one, other = fleet_of("random", 9), fleet_of("random", 9)
    draws = [place(one, None).choice.replica for _ in range(20)]
    assert draws == [place(other, None).choice.replica for _ in range(20)]


class TestAffinity:
    @given(replicas=st.integers(2, 30), bound=st.sampled_from([1.0, 1.25, 2.0]), seed=st.integers(0, 999))
    @settings(max_examples=40, deadline=None)
    def test_no_replica_passes_the_bound(self, replicas: int, bound: float, seed: int) -> None:
        ledger = fleet_of("affinity", replicas, Parameters(load_bound=bound))
        random = Random(seed)
        for total in range(1, 120):
            lease = place(ledger, f"s{random.randrange(10)}")
            assert lease.replica.in_flight <= -(-bound * total // replicas)

    def test_a_session_stays_and_sessions_spread(self) -> None:
        ledger = fleet_of("affinity", 10)
        homes = {f"s{n}": serve(ledger, f"s{n}").choice.replica for n in range(2000)}
        assert all(serve(ledger, session).choice.replica == home for session, home in list(homes.items())[:100])
        assert all(140 <= count <= 260 for count in Counter(homes.values()).values())

    def test_a_new_replica_takes_one_session_in_n_and_moves_no_other(self) -> None:
        ledger = fleet_of("affinity", 9, Parameters(load_bound=float("inf")))
        before = {f"s{n}": serve(ledger, f"s{n}").choice.replica for n in range(3000)}
        ledger.join("new", 0.0)
        after = {session: serve(ledger, session).choice.replica for session in before}
        moved = {session for session in before if before[session] != after[session]}
        assert all(after[session] == "new" for session in moved)
        assert 0.08 <= len(moved) / 3000 <= 0.12
        ledger.leave("new", 0.0)
        assert {session: serve(ledger, session).choice.replica for session in before} == before

    def test_requests_without_a_session_go_by_prefix_or_load(self) -> None:
        ledger = fleet_of("affinity", 10)
        assert len({serve(ledger, None, prefix=b"head").choice.replica for _ in range(9)}) == 1
        assert len({place(ledger, None).choice.replica for _ in range(10)}) == 10


def test_reasons_are_those_of_the_metrics() -> None:
    ledger = fleet_of("affinity", 2, Parameters(load_bound=1.0))
    assert place(ledger, "s").choice.reason is Reason.HOME
    assert place(ledger, "s").choice.reason is Reason.SPILLED
