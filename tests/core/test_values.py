"""The merge of opinions: nobody is overwritten, and order does not matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import PlanRefusedError
from optistack.settings import Value, choose, constrain, merge, suggest

PAGES = (1, 16, 32, 64, 128)


def signed(source: str, opinion: Value[int], *, fallback: bool = False) -> Value[int]:
    return opinion.from_source(source, fallback=fallback)


def test_bare_values_are_accepted() -> None:
    assert Value[int].model_validate(64).value == 64


def test_two_firm_wishes_that_differ_are_refused_naming_both() -> None:
    with pytest.raises(PlanRefusedError) as refused:
        merge("kv.page_size_tokens", [signed("alpha", choose(32, why="a")), signed("beta", choose(64, why="b"))])
    assert "alpha says 32 (a)" in refused.value.message
    assert "beta says 64 (b)" in refused.value.message


def test_a_suggestion_yields_to_a_firm_wish_and_to_a_constraint() -> None:
    assert merge("x", [signed("a", suggest(16)), signed("b", choose(64))]).value == 64
    constrained = merge("x", [signed("a", suggest(16)), signed("b", constrain(one_of=(32, 64)))])
    assert constrained.value is None
    assert constrained.one_of == (32, 64)


def test_a_fallback_yields_to_a_suggestion_but_its_constraint_holds() -> None:
    assert merge("x", [signed("adapter", suggest(16), fallback=True), signed("b", suggest(64))]).value == 64
    with pytest.raises(PlanRefusedError, match="adapter says one of 32, 64"):
        merge("x", [signed("adapter", constrain(one_of=(32, 64)), fallback=True), signed("b", choose(16))])


def test_a_wish_outside_a_constraint_names_who_constrains() -> None:
    with pytest.raises(PlanRefusedError, match=r"x = 48 is not multiple of 32: .*kernel says multiple of 32 \(tiles\)"):
        merge("x", [signed("kernel", constrain(multiple_of=32, why="tiles")), signed("user", choose(48))])


def test_the_only_allowed_choice_is_the_value() -> None:
    merged = merge("x", [signed("a", constrain(one_of=(32, 64))), signed("b", constrain(one_of=(64, 128)))])
    assert merged.value == 64
    assert [origin.source for origin in merged.origins] == ["a", "b"]


def test_constraints_without_a_common_value_are_refused() -> None:
    with pytest.raises(PlanRefusedError, match="No value of x suits all plugins"):
        merge("x", [signed("a", constrain(one_of=(32,))), signed("b", constrain(at_least=64))])
    with pytest.raises(PlanRefusedError, match="No value of x suits all plugins"):
        merge("x", [signed("a", constrain(at_most=32)), signed("b", constrain(at_least=64))])


opinions = st.one_of(
    st.builds(choose, st.sampled_from(PAGES)),
    st.builds(suggest, st.sampled_from(PAGES)),
    st.builds(
        lambda one_of, multiple, low, high: constrain(one_of=one_of, multiple_of=multiple, at_least=low, at_most=high),
        st.lists(st.sampled_from(PAGES), unique=True),
        st.none() | st.sampled_from((1, 16, 32)),
        st.none() | st.sampled_from(PAGES),
        st.none() | st.sampled_from(PAGES),
    ),
)


@given(st.lists(st.tuples(opinions, st.booleans()), max_size=5), st.randoms())
def test_the_merge_does_not_depend_on_order_and_honours_every_constraint(
    said: list[tuple[Value[int], bool]], random: object
) -> None:
    held = [signed(f"p{index}", opinion, fallback=weak) for index, (opinion, weak) in enumerate(said)]
    shuffled = list(held)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis types its Random as object

    def outcome(opinions: list[Value[int]]) -> object:
        try:
            return merge("x", opinions)
        except PlanRefusedError as error:
            return type(error)

    merged = outcome(held)
    assert merged == outcome(shuffled)
    if isinstance(merged, Value) and merged.value is not None:
        assert all(opinion.allows(merged.value) for opinion in held)
        firm = {o.value for o in held if o.is_set and not o.default and not o.fallback}
        assert firm <= {merged.value}
