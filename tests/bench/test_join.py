"""Results that were measured apart: which may share their axes, and which do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optistack.errors import InputError
from optistack_bench.join import join
from optistack_bench.result import Point, Repeat, Result, Server, WorkloadFacts, load_result
from optistack_bench.settings import Settings

EVIDENCE = Path(__file__).parents[2] / "evidence" / "bench-h200"


def point(users: int = 1, digest: str = "same", divide: int = 1) -> Point:
    facts = WorkloadFacts(
        name="sessions",
        digest=digest,
        rules=(),
        sessions=1,
        requests=1,
        longest_tokens=1,
        divide=divide,
        reusable_share=0,
    )
    return Point(
        target="endpoint",
        users=users,
        server=Server(url="", model="toy"),
        workload=facts,
        repeats=(Repeat(figures={"requests": 1}),),
    )


def result(*points: Point, machine: str = "here", drop: tuple[str, ...] = (), **settings: Any) -> Result:
    asked = {key: value for key, value in {**Settings().as_json(), **settings}.items() if key not in drop}
    made = Result(
        optistack_version="0",
        made_at="",
        machine=machine,
        settings=asked,
        state="complete",
        points=points or (point(),),
    )
    return Result.model_validate_json(made.model_dump_json())


def test_the_results_that_are_kept_share_their_axes() -> None:
    names = ("plain", "fp8-kv", "fp8-kv-dflash")
    kept = {name: load_result(EVIDENCE / name) for name in names}
    joined = join(kept)
    assert [one.target for one in joined.points] == [name for name in names for _ in kept[name].points]
    assert joined.state == "complete"


@pytest.mark.parametrize(
    "other",
    [
        result(max_errors=0.01, timeout_s=5.0, repeats=9, session_header="X-Other"),
        result(drop=("max_errors", "chat", "tools")),
        result(point(users=4, digest="of more sessions", divide=2)),
        result(trace="/elsewhere/the-same.jsonl"),
    ],
)
def test_what_does_not_change_the_workload_does_not_part_results(other: Result) -> None:
    assert len(join({"a": result(), "b": other}).points) == 2


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (result(seed=1), "another workload than a"),
        (result(turns=2), "another workload than a"),
        (result(prefill_only=True), "another workload than a"),
        (result(chat=True), "another workload than a"),
        (result(point(digest="other")), "b was sent other requests than a at 1 user"),
        (result(point(users=4), point(digest="other")), "b was sent other requests than a at 1 user"),
    ],
)
def test_what_was_sent_other_requests_is_refused(other: Result, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        join({"a": result(), "b": other})


def test_each_is_held_against_every_other() -> None:
    apart = result(point(users=4))
    with pytest.raises(InputError, match="c was sent other requests than b at 4 users"):
        join({"a": result(), "b": apart, "c": result(point(users=4, digest="other"))})


def test_digests_of_chats_are_not_compared_and_their_scale_is() -> None:
    chat = result(chat=True)
    assert len(join({"a": chat, "b": result(point(digest="other"), chat=True)}).points) == 2
    with pytest.raises(InputError, match="divided by 2, and divided by 1 there"):
        join({"a": chat, "b": result(point(divide=2), chat=True)})


def test_a_result_without_points_is_left_out_and_named() -> None:
    empty = result().model_copy(update={"points": (), "state": "partial", "why": "It was interrupted."})
    joined = join({"empty": empty, "whole": result()})
    assert [one.target for one in joined.points] == ["whole"]
    assert (joined.state, joined.why) == ("partial", "empty: left out, nothing was measured (It was interrupted.)")
    with pytest.raises(InputError, match="Nothing was measured in empty"):
        join({"empty": empty})


def test_every_machine_is_named_once() -> None:
    joined = join({"a": result(), "b": result(machine="there"), "c": result()})
    assert joined.machine == "here; there"
