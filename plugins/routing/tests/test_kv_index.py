"""The index against a model that keeps whole prefixes, and its bound."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from optistack_routing.kv_index.events import Cleared, Event, Removed, Stored
from optistack_routing.kv_index.index import BlockIndex, chain

PAGE = 2
MEDIA = ("GPU", "CPU")
prompts = st.lists(st.integers(0, 1), max_size=10)


def name_of(prefix: tuple[int, ...]) -> int:
    """An engine's hash of the block that ends ``prefix``."""
    return hash(("engine", prefix))


def stored(prompt: list[int], first: int = 0, medium: str = "GPU", *, plain: bool = True, page: int = PAGE) -> Stored:
    """The pages of ``prompt`` from number ``first`` on."""
    ends = range((first + 1) * PAGE, len(prompt) + 1, PAGE)
    parent = name_of(tuple(prompt[: first * PAGE])) if first else None
    tokens = prompt[first * PAGE : len(prompt) // PAGE * PAGE]
    return Stored([name_of(tuple(prompt[:end])) for end in ends], parent, tokens, page, medium, plain)


@dataclass
class Model:
    """Replica -> prefix -> media, and the obvious answer."""

    held: dict[str, dict[tuple[int, ...], set[str]]] = field(default_factory=dict)

    def apply(self, replica: str, event: Event, prompt: list[int], first: int) -> None:
        held = self.held.get(replica)
        if held is None:
            return
        if isinstance(event, Cleared):
            held.clear()
        elif isinstance(event, Stored):
            if first and tuple(prompt[: first * PAGE]) not in held:
                return
            for end in range((first + 1) * PAGE, len(prompt) + 1, PAGE):
                held.setdefault(tuple(prompt[:end]), set()).add(event.medium)
        else:
            prefix = tuple(prompt[: (first + 1) * PAGE])
            held.get(prefix, set()).discard(event.medium)
            if not held.get(prefix, {""}):
                del held[prefix]

    def cached_tokens(self, prompt: list[int]) -> dict[str, int]:
        answer = {}
        for replica, held in self.held.items():
            tokens = 0
            while tokens + PAGE < len(prompt) and tuple(prompt[: tokens + PAGE]) in held:
                tokens += PAGE
            answer[replica] = tokens
        return answer


operations = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "remove", "clear", "join", "leave"]),
        st.sampled_from(["a", "b", "c"]),
        prompts,
        st.integers(0, 3),
        st.sampled_from(MEDIA),
    ),
    max_size=40,
)


@given(operations, prompts)
def test_it_answers_as_the_model_does(steps: list[tuple[str, str, list[int], int, str]], asked: list[int]) -> None:
    index, model = BlockIndex(PAGE), Model()
    for replica in ("a", "b"):
        index.join(replica)
        model.held[replica] = {}
    for what, replica, prompt, first, medium in steps:
        event: Event
        if what == "join":
            index.join(replica)
            model.held.setdefault(replica, {})
            continue
        if what == "leave":
            index.leave(replica)
            model.held.pop(replica, None)
            continue
        if what == "store":
            event = stored(prompt, first, medium)
            if not event.hashes:
                continue
        elif what == "remove":
            event = Removed([name_of(tuple(prompt[: (first + 1) * PAGE]))], medium)
            if len(prompt) < (first + 1) * PAGE:
                continue
        else:
            event = Cleared()
        index.apply(replica, [event])
        model.apply(replica, event, prompt, first)
    assert index.cached_tokens(asked) == model.cached_tokens(asked)
    assert index.blocks() == {replica: len(held) for replica, held in model.held.items()}


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 7), st.integers(0, 6))
def test_keys_can_be_made_in_parts(tokens: list[int], page: int, known: int) -> None:
    whole = chain(array("I", tokens), page)
    assert len(whole) == len(tokens) // page
    assert chain(array("I", tokens), page, whole[:known]) == whole


def test_a_key_says_which_prompt_its_block_continues() -> None:
    assert chain(array("I", [1, 2, 9, 9]), 2)[1] != chain(array("I", [3, 4, 9, 9]), 2)[1]


def test_the_page_of_the_last_token_is_computed_again() -> None:
    index = BlockIndex(PAGE)
    index.join("a")
    index.apply("a", [stored([1, 2, 3, 4])])
    assert index.cached_tokens([1, 2, 3, 4]) == {"a": 2}
    assert index.cached_tokens([1, 2, 3, 4, 5]) == {"a": 4}


def test_blocks_that_cannot_be_placed_are_counted_and_left_out() -> None:
    index = BlockIndex(PAGE)
    index.join("a")
    index.apply("a", [stored([1, 2, 3, 4], 1), stored([1, 2], plain=False), stored([1, 2, 3, 4], page=4)])
    assert (index.blocks(), index.counts.unplaced, index.counts.other_pages) == ({"a": 0}, 2, 2)


def test_what_every_replica_can_read_makes_none_of_them_better() -> None:
    index = BlockIndex(PAGE)
    index.join("a")
    index.apply("a", [stored([1, 2, 3, 4], medium="EXTERNAL")])
    assert index.cached_tokens([1, 2, 3, 4, 5]) == {"a": 0}


@given(st.lists(st.integers(0, 1000), min_size=30, max_size=200))
def test_lost_evictions_cannot_grow_it_without_end(tokens: list[int]) -> None:
    index = BlockIndex(1, max_blocks=20)
    index.join("a")
    for n, token in enumerate(tokens):
        index.apply("a", [Stored([n], None, [token], 1, "GPU", True)])
        assert index.blocks()["a"] <= 20
    assert index.counts.dropped >= len(tokens) - 20
    assert index.cached_tokens([tokens[-1], 0])["a"] == 1
    index.leave("a")
    assert not index._holders
