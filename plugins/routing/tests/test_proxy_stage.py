"""What holds of every request on its way, whatever happens to it."""

from __future__ import annotations

from enum import EnumType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack_routing.proxy.stage import RequestStage, Stage, TryStage

KINDS = [RequestStage, TryStage]


@pytest.mark.parametrize("kind", KINDS)
def test_every_stage_can_end_and_the_end_is_the_end(kind: EnumType) -> None:
    over = kind["OVER"]
    assert over.after == ()
    for stage in kind:
        seen, ahead = {stage}, [stage]
        while ahead:
            new = [after for after in ahead.pop().after if after not in seen]
            seen.update(new)
            ahead += new
        assert over in seen, stage


@given(st.sampled_from([(one, other) for kind in KINDS for one in kind for other in kind]))
def test_a_stage_that_does_not_follow_is_refused(pair: tuple[Stage, Stage]) -> None:
    one, other = pair
    if other in one.after:
        assert one.then(other) is other
    else:
        with pytest.raises(RuntimeError):
            one.then(other)


def test_an_answer_that_has_begun_cannot_be_taken_back() -> None:
    assert TryStage.PASSING.after == (TryStage.OVER,)


def test_nothing_is_passed_on_before_the_head_of_an_answer_is_here() -> None:
    before = {stage for stage in TryStage if TryStage.PASSING in stage.after}
    assert before == {TryStage.HOLDING, TryStage.TURNED_AWAY}
