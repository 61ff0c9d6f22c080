"""What is sent: equal block hashes are equal tokens, different ones differ, and a turn contains the one before."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack.traces import Trace, TraceRequest, TraceSession, read_trace
from optistack_bench.load import Loop
from optistack_bench.replay import replay
from optistack_bench.settings import Settings, WorkloadMaker
from optistack_bench.synthetic import SHAPES, Texts, sessions
from optistack_bench.tokens import TokenMaker
from optistack_bench.workload import Session, Turn, Workload

REQUEST = {"in": 140, "out": 9, "hash_ids": [1, 2], "think_time": 50}


def ids(turn: Turn) -> list[int]:
    found: list[int] = json.loads(turn.prompt)
    return found


def common(one: Sequence[object], other: Sequence[object]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def replayed(requests: Sequence[TraceRequest], *, divide: int = 1, salt: int = 0, count: int = 1) -> Workload:
    trace = Trace((TraceSession("s", 64, tuple(requests)),), ())
    return replay(
        trace, name="t", sessions=count, turns=None, divide=divide, think_limit_s=5, seed=0, maker=TokenMaker(salt)
    )


hashes = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(st.lists(hashes, min_size=2, max_size=5), st.sampled_from([1, 2, 8, 32]), st.integers(0, 63))
def test_prompts_begin_alike_exactly_where_their_hashes_do(chains: list[list[int]], divide: int, tail: int) -> None:
    workload = replayed([TraceRequest(64 * len(chain) + tail, 5, tuple(chain)) for chain in chains], divide=divide)
    prompts = [ids(turn) for turn in workload.turns()]
    for one, prompt in zip(chains, prompts, strict=True):
        assert len(prompt) == -(-(64 * len(one) + tail) // divide)
        for other, theirs in zip(chains, prompts, strict=True):
            if one != other:
                shared = common(one, other) * 64 // divide
                # A tail may be cut to one token, which is too short to differ from every block.
                assert shared <= common(prompt, theirs) <= shared + 1


def test_where_a_block_would_be_shorter_than_two_tokens_blocks_are_taken_together() -> None:
    first, second = (TraceRequest(64 * 8, 5, ids) for ids in ((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 5, 6, 9, 9)))
    one, other = (ids(turn) for turn in replayed([first, second], divide=64).turns())
    assert (len(one), len(other), common(one, other)) == (8, 8, 6)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 50))
def test_a_shorter_piece_is_the_head_of_a_longer_one_of_its_name(short: int, more: int, salt: int) -> None:
    maker = TokenMaker(salt)
    assert maker.piece("a", short + more).ids.startswith(maker.piece("a", short).ids)
    assert maker.piece("a", 2) != maker.piece("b", 2)


def test_another_salt_has_the_same_shape_and_no_token_in_common_at_the_head() -> None:
    one, other = (next(replayed([TraceRequest(140, 9, (1, 2))], salt=salt).turns()) for salt in (0, 1))
    assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
    assert common(ids(one)[:2], ids(other)[:2]) < 2


def test_copies_of_a_session_share_nothing_and_pauses_are_clipped() -> None:
    request = TraceRequest(128, 9, (1, 2), think_s=90)
    workload = replayed([request, request], count=2)
    assert [turn.think_s for turn in workload.turns()] == [5, 5, 5, 5]
    assert [turn.reusable_tokens for turn in workload.turns()] == [0, 128, 0, 128]


def everyone(workload: Workload) -> list[Session]:
    return [one for session in workload.sessions for one in session.everyone()]


@given(st.integers(0, 100), st.sampled_from([1, 16]), st.booleans())
def test_each_prompt_of_a_session_contains_the_one_before(seed: int, divide: int, real: bool) -> None:
    texts = Texts({"code": range(40_000, 41_000)}) if real else Texts({})
    made = sessions(number=2, turns=4, divide=divide, think_limit_s=1, seed=seed, maker=TokenMaker(3), texts=texts)
    for session in made.sessions:
        for before, after in zip(session.turns, session.turns[1:], strict=False):
            assert ids(after)[: before.prompt_tokens] == ids(before)
            assert after.reusable_tokens == before.prompt_tokens
    first, second = (session.turns[0] for session in made.sessions)
    assert ids(first)[:8] != ids(second)[:8]
    again = sessions(number=2, turns=4, divide=divide, think_limit_s=1, seed=seed, maker=TokenMaker(3), texts=texts)
    assert made.digest() == again.digest()


def test_sessions_have_the_200_to_1_shape() -> None:
    made = sessions(number=40, turns=None, divide=1, think_limit_s=30, seed=1, maker=TokenMaker(), texts=Texts({}))
    turns = list(made.turns())
    ratio = sum(turn.prompt_tokens for turn in turns) / sum(turn.output_tokens for turn in turns)
    assert 180 < ratio < 220


def test_the_fixed_shape_shares_what_it_says() -> None:
    made = SHAPES["50k-200"](number=3, divide=1, seed=0, maker=TokenMaker(), texts=Texts({}))
    assert [(turn.prompt_tokens, turn.output_tokens) for turn in made.turns()] == [(50_000, 200)] * 3
    assert [turn.reusable_tokens for turn in made.turns()] == [0, 45_000, 45_000]


def trace_file(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return path


def test_broken_lines_are_named_skipped_and_counted(tmp_path: Path) -> None:
    good = {"block_size": 64, "requests": [REQUEST]}
    path = trace_file(tmp_path, good, "{broken", {"requests": [{"in": -1}]}, {"block_size": True, "requests": []}, good)
    trace = read_trace(path)
    assert len(trace.sessions) == 2
    assert [line.partition(":")[0] for line in trace.skipped] == ["line 2", "line 3", "line 4"]
    maker = WorkloadMaker(
        Settings(workload="trace", trace=path), loop=Loop(1), texts=Texts({}), context_tokens=None, model="m"
    )
    assert any("3 lines were skipped in the trace" in rule for rule in maker.make(0).rules)


def test_a_byte_that_is_no_text_costs_its_line_only(tmp_path: Path) -> None:
    good = json.dumps({"requests": [REQUEST]}).encode()
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join((good, b'{"id": "\xff"}', good)))
    trace = read_trace(path)
    assert (len(trace.sessions), trace.skipped) == (2, ("line 2: not UTF-8 (byte 9)",))


def test_a_number_that_is_too_large_is_told_so(tmp_path: Path) -> None:
    row = {"requests": [REQUEST]}
    path = trace_file(tmp_path, row, {"requests": [{**REQUEST, "in": 1e18}]})
    assert read_trace(path).skipped == ('line 2: request 1 has no number "in" from 0 to 1,000,000,000,000',)


def test_sessions_of_one_id_share_nothing(tmp_path: Path) -> None:
    row = {"id": "same", "requests": [{"in": 128, "out": 1, "hash_ids": [1, 2]}]}
    trace = read_trace(trace_file(tmp_path, row, row, row, {**row, "id": "same, 2"}))
    assert len({one.name for one in trace.sessions}) == 4
    made = replay(trace, name="m", sessions=4, turns=None, divide=1, think_limit_s=1, seed=0, maker=TokenMaker())
    assert [turn.reusable_tokens for turn in made.turns()] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("number", "turns", "rule"),
    [
        (2, None, "All 2 sessions."),
        (1, 3, "1 of 2 sessions, drawn with seed 0, the first 3 turns of each."),
        (3, None, "3 sessions, drawn with seed 0 from 2, those that come again with blocks of their own."),
    ],
)
def test_what_was_drawn_is_a_sentence(number: int, turns: int | None, rule: str) -> None:
    one = TraceSession("s", 64, (TraceRequest(140, 9, (1, 2)),))
    trace = Trace((one, one), ())
    made = replay(trace, name="t", sessions=number, turns=turns, divide=1, think_limit_s=5, seed=0, maker=TokenMaker())
    assert made.rules[0] == rule


def test_a_trace_without_a_session_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no session; line 1"):
        read_trace(trace_file(tmp_path, "{"))
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")


def test_mooncake_rows_share_blocks_across_sessions_and_keep_their_times(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000 * at, "input_length": 1000, "output_length": 4, "hash_ids": [7, 8 + at]} for at in range(2)
    ]
    trace = read_trace(trace_file(tmp_path, *rows))
    assert [one.start_s for one in trace.sessions] == [0, 3]
    made = replay(trace, name="m", sessions=2, turns=None, divide=1, think_limit_s=1, seed=0, maker=TokenMaker())
    one, other = (ids(turn) for turn in made.turns())
    assert (len(one), len(other)) == (1000, 1000)
    assert common(one, other) == 512


def test_sub_agents_are_sessions_of_their_own(tmp_path: Path) -> None:
    row = {"id": "x", "requests": [REQUEST, {"type": "subagent", "requests": [REQUEST]}, REQUEST]}
    made = replay(
        read_trace(trace_file(tmp_path, row)),
        name="m", sessions=1, turns=None, divide=1, think_limit_s=1, seed=0, maker=TokenMaker(),
    )  # fmt: skip
    assert [session.name for session in everyone(made)] == ["x#0", "x#0.1.0"]


@pytest.mark.parametrize(("context", "divide"), [(8192, 16), (2048, 64), (200_000, 1)])
def test_sessions_are_divided_by_the_smallest_power_of_two_that_fits(context: int, divide: int) -> None:
    maker = WorkloadMaker(Settings(), loop=Loop(2), texts=Texts({}), context_tokens=context, model="m")
    made = maker.make(0)
    assert maker.divide == divide
    assert made.longest_tokens <= context
    assert (divide == 1) != any(f"divided by {divide}" in rule for rule in made.rules)


@pytest.mark.parametrize("workload", ["sessions", "3k-100", "50k-200"])
def test_real_text_is_as_long_as_what_was_settled(workload: str) -> None:
    settings, text = Settings(workload=workload, divide=0), Texts({"code": range(40_000, 47_000)})
    made = [
        WorkloadMaker(settings, loop=Loop(2), texts=texts, context_tokens=4096, model="m")
        for texts in (text, Texts({}))
    ]
    sizes = [[turn.prompt_tokens for turn in one.make(0).turns()] for one in made]
    assert (made[0].divide, sizes[0][:1]) == (made[1].divide, sizes[1][:1])
    assert max(max(one) for one in sizes) <= 4096


def test_a_workload_longer_than_the_context_is_refused_with_what_would_fit() -> None:
    with pytest.raises(InputError, match=r"takes 3,100 tokens, and m has a context of 2,048") as refused:
        WorkloadMaker(Settings(workload="3k-100"), loop=Loop(1), texts=Texts({}), context_tokens=2048, model="m")
    assert refused.value.fix.startswith("--divide 2 ")
    with pytest.raises(InputError, match="has a context of 1") as refused:
        WorkloadMaker(Settings(workload="3k-100", divide=0), loop=Loop(1), texts=Texts({}), context_tokens=1, model="m")
    assert refused.value.fix.startswith("No --divide up to 4,096")
    fits = Settings(workload="3k-100", divide=2)
    assert WorkloadMaker(fits, loop=Loop(1), texts=Texts({}), context_tokens=2048, model="m").divide == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"workload": "session"}, "There is no workload 'session'"),
        ({"workload": "trace"}, "Which trace"),
        ({"trace": Path("x")}, "A trace is replayed by the workload trace"),
        ({"divide": 3}, "no power of two"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Settings(**settings)  # type: ignore[arg-type]  # wrong on purpose
