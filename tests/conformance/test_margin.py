"""The greedy margin: rounding passes, a token that the model would not have picked does not."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import CheckFailedError
from optistack.verify.endpoint import Endpoint
from optistack_conformance.answers import NotScoredError
from optistack_conformance.greedy import Generation, check_greedy_margin, generate, score
from optistack_conformance.margin import BOUND_NAT, QUANTIZED_KV_BOUND_NAT, ScoredToken, bound_nat, judge


def token(margin: float, *, position: int = 0) -> ScoredToken:
    return ScoredToken(0, position, emitted=1 if margin else 2, emitted_logprob=-1 - margin, best=2, best_logprob=-1.0)


class TestJudge:
    def test_nothing_scored_is_no_pass(self) -> None:
        assert not judge([], 1.0).passed

    def test_the_worst_token_is_named(self) -> None:
        verdict = judge([token(0.0), token(0.25, position=4), token(3.0, position=9)], 0.5)
        assert not verdict.passed
        assert (verdict.tokens, verdict.swapped, len(verdict.outside)) == (3, 2, 1)
        assert "largest margin 3.000 nat" in verdict.describe()
        assert "at token 9 of sequence 0: 1 emitted, 2 is better by 3.000 nat" in verdict.describe()

    def test_a_margin_that_is_not_a_number_fails(self) -> None:
        broken = ScoredToken(0, 0, emitted=1, emitted_logprob=float("nan"), best=2, best_logprob=-1.0)
        verdict = judge([token(0.0), broken], 100.0)
        assert not verdict.passed
        assert verdict.worst is broken

    @given(st.lists(st.floats(0, 10), min_size=1), st.floats(0.01, 10))
    def test_it_passes_exactly_when_the_largest_margin_is_within_the_bound(
        self, margins: list[float], bound: float
    ) -> None:
        tokens = [token(margin) for margin in margins]
        assert judge(tokens, bound).passed == (max(one.margin_nat for one in tokens) <= bound)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8", "nvfp4", "int8_per_token_head"])
def test_quantized_kv_has_a_wider_bound(dtype: str) -> None:
    assert bound_nat(dtype) == QUANTIZED_KV_BOUND_NAT > BOUND_NAT


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", None])
def test_plain_kv_has_the_narrow_bound(dtype: str | None) -> None:
    assert bound_nat(dtype) == BOUND_NAT


class Scripted:
    """An engine that gives the answers of a script, by path, and keeps what it was asked."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = {f"/{name.replace('_', '/')}": list(given) for name, given in answers.items()}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or b"{}")
        self.asked.append((request.url.path, body))
        given = self.answers.get(request.url.path)
        if not given:
            return httpx.Response(404)
        answer = given.pop(0) if len(given) > 1 else given[0]
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def endpoint(self) -> Endpoint:
        return Endpoint("http://engine", transport=httpx.MockTransport(self))


def vllm(*completions: Any) -> Scripted:
    return Scripted(
        version=[{"version": "0.33.0"}], v1_models=[{"data": [{"id": "m"}]}], v1_completions=list(completions)
    )


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"text": "", **fields}]}


LOGPROBS = [None, {"5": {"logprob": -2.0}}, {"7": {"logprob": -0.5}}, {"8": {"logprob": -1.5}, "9": {"logprob": -1.0}}]


class TestVllm:
    def test_text_is_generated_as_ids(self) -> None:
        engine = vllm(choice(prompt_token_ids=[4, 5], token_ids=[7, 8]))
        generation = generate(engine.endpoint(), "a", max_tokens=2)
        assert (generation.prompt_ids, generation.output_ids) == ((4, 5), (7, 8))
        assert engine.asked[-1][1]["temperature"] == 0
        assert engine.asked[-1][1]["return_token_ids"] is True

    def test_the_generated_ids_are_scored_after_the_prompt(self) -> None:
        engine = vllm(choice(prompt_logprobs=LOGPROBS))
        tokens = score(engine.endpoint(), Generation((4, 5), (7, 8), {}), sequence=3)
        assert engine.asked[-1][1]["prompt"] == [4, 5, 7, 8]
        assert [(one.emitted, one.best, one.margin_nat, one.sequence) for one in tokens] == [
            (7, 7, 0.0, 3),
            (8, 9, 0.5, 3),
        ]

    def test_an_engine_without_token_ids_cannot_be_scored(self) -> None:
        with pytest.raises(NotScoredError, match="no token ids"):
            generate(vllm(choice()).endpoint(), "a")

    @pytest.mark.parametrize("entries", [None, LOGPROBS[:3], [None, None, None, {"99": {"logprob": -1.0}}]])
    def test_missing_scores_are_not_a_pass(self, entries: Any) -> None:
        with pytest.raises(NotScoredError, match="of the 2 tokens"):
            score(vllm(choice(prompt_logprobs=entries)).endpoint(), Generation((4, 5), (7, 8), {}))

    def test_an_error_of_the_engine_is_shown(self) -> None:
        with pytest.raises(CheckFailedError, match=r"answered 500.*out of memory"):
            generate(vllm(httpx.Response(500, text="out of memory")).endpoint(), "a")

    def test_the_whole_check(self) -> None:
        engine = vllm(choice(prompt_token_ids=[4, 5], token_ids=[7, 8]), choice(prompt_logprobs=LOGPROBS))
        verdict = check_greedy_margin(engine.endpoint(), 0.25, prompts=["a"], max_tokens=2)
        assert [one.position for one in verdict.outside] == [1]


class TestSglang:
    ECHO: ClassVar = {
        "text": "",
        "output_ids": [7],
        "meta_info": {"input_token_logprobs": [[None, 4, None], [-2.0, 5, None]]},
    }
    ANSWER: ClassVar = {"text": "", "output_ids": [7, 8], "meta_info": {"spec_verify_ct": 2}}
    SCORES: ClassVar = {
        "text": "",
        "output_ids": [1],
        "meta_info": {
            "input_token_logprobs": [[None, 4, None], [-2.0, 5, None], [-0.5, 7, None], [-1.5, 8, None]],
            "input_top_logprobs": [None, [[-1.0, 6, None]], [[-0.5, 7, None]], [[-1.0, 9, None]]],
        },
    }

    def test_the_whole_check(self) -> None:
        engine = Scripted(generate=[self.ANSWER, self.ECHO, self.SCORES])
        verdict = check_greedy_margin(engine.endpoint(), 1.0, prompts=["a"], max_tokens=2)
        assert (verdict.tokens, verdict.swapped, verdict.passed) == (2, 1, True)
        assert verdict.worst is not None
        assert (verdict.worst.emitted, verdict.worst.best, verdict.worst.margin_nat) == (8, 9, 0.5)
        posted = [body for path, body in engine.asked if path == "/generate"]
        assert posted[2]["input_ids"] == [4, 5, 7, 8]
        assert posted[2]["logprob_start_len"] == 0, "what lies before the start would be read from the cache"

    def test_an_engine_that_refuses_logprobs_answers_and_is_not_scored(self) -> None:
        engine = Scripted(
            generate=[self.ANSWER, httpx.Response(400, text="return_logprob is not supported")]
        ).endpoint()
        answer = generate(engine, "a", max_tokens=2)
        assert answer.output_ids == (7, 8)
        with pytest.raises(NotScoredError, match="no log probabilities"):
            score(engine, answer)

    def test_scores_of_other_tokens_are_not_a_pass(self) -> None:
        scores = {**self.SCORES, "meta_info": {**self.SCORES["meta_info"], "input_token_logprobs": [[None, 5, None]]}}
        with pytest.raises(NotScoredError):
            score(Scripted(generate=[scores]).endpoint(), Generation((4, 5), (7, 8), {}))

    def test_an_error_of_the_engine_is_shown(self) -> None:
        with pytest.raises(CheckFailedError, match=r"http://engine/generate answered 400: no"):
            generate(Scripted(generate=[httpx.Response(400, text="no")]).endpoint(), "a")
