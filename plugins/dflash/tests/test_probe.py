"""The live checks against an honest engine and against broken ones: each check has a fault that makes it fail.

The engine here is a stand-in over HTTP: a tiny deterministic target, a drafter, and faults to switch on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

import optistack_dflash.probe_counters
from optistack.settings import Serving, choose
from optistack.stack.spec import ParallelSection
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import CheckResult, Status
from optistack_dflash.probe_warm import CHECK

VOCAB = 100
TOP, SECOND, REST = -0.1, -0.35, -9.0


def best_after(ids: list[int]) -> int:
    return (7 * sum(ids) + len(ids)) % VOCAB


def logprob_of(token: int, before: list[int]) -> float:
    best = best_after(before)
    return TOP if token == best else SECOND if token == (best + 1) % VOCAB else REST


@dataclass
class FakeEngine:
    """``faults``: ``idle`` never drafts, ``swap`` emits the second best now and then (rounding), ``wrong`` emits a
    token that the target would never pick, ``blind`` has no metrics page, ``mute`` gives no ids, ``crash`` answers
    500, ``crash-scoring`` does so when asked to score. Of a prompt that it has seen before: ``forgets`` loses half of
    what the draft needs, ``stops`` does not draft, ``uncached`` computes it anew, ``secret`` does not say that it was
    cached."""

    dialect: str = "vllm"
    block_tokens: int = 7
    cut_tokens: int = 0
    """By so much one draft in four is shorter."""
    accepted: int = 0
    faults: set[str] = field(default_factory=set)
    counters: list[int] = field(default_factory=lambda: [100, 700, 50])
    requests: list[dict[str, Any]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    groups: int = 1
    """With several, requests go to each by turns unless they name one."""

    def endpoint(self) -> Endpoint:
        return Endpoint("http://engine", transport=httpx.MockTransport(self.handle))

    def handle(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        self.requests.append(body)
        named = request.headers.get("X-data-parallel-rank") if self.dialect == "vllm" else body.get("routed_dp_rank")
        self.group = (
            int(named)
            if named is not None
            else sum(bool({"prompt", "text"} & body.keys()) for body in self.requests) % self.groups
        )
        if path == "/metrics" and "blind" not in self.faults:
            return httpx.Response(200, text=self.metrics())
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        if self.dialect == "vllm" and path == "/version":
            return httpx.Response(200, json={"version": "0.33.0"})
        if path not in ("/v1/completions", "/generate"):
            return httpx.Response(404)
        scoring = "prompt_logprobs" in body or "input_ids" in body
        if "crash" in self.faults or (scoring and "crash-scoring" in self.faults):
            return httpx.Response(500, text="device-side assert")
        if body.get("return_logprob") and "no-logprobs" in self.faults:
            return httpx.Response(400, text="DFLASH speculative decoding does not support return_logprob yet.")
        answer = self.complete(body) if self.dialect == "vllm" else self.generate(body)
        return httpx.Response(200, json=answer)

    def metrics(self) -> str:
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        lines = ["# TYPE vllm:num_requests_running gauge", 'vllm:num_requests_running{engine="0"} 0.0']
        if "idle" not in self.faults and self.dialect == "vllm":
            for name, value in zip(names, self.counters, strict=True):
                lines += [f"# TYPE vllm:spec_decode_{name}_total counter"]
                lines += [f'vllm:spec_decode_{name}_total{{engine="0"}} {float(value)}']
        return "\n".join(lines) + "\n"

    def hit(self, text: str) -> bool:
        """Whether ``text`` comes from the cache, into which it goes."""
        known = f"{self.group} {text}" in self.seen and "uncached" not in self.faults
        self.seen.add(f"{self.group} {text}")
        return known

    def write(self, prompt: list[int], max_tokens: int, *, warm: bool = False) -> list[int]:
        ids = list(prompt)
        for number in range(max_tokens):
            best = best_after(ids)
            swapped = "swap" in self.faults and number % 5 == 3
            wrong = "wrong" in self.faults and number == 9
            ids.append((best + 50) % VOCAB if wrong else (best + 1) % VOCAB if swapped else best)
        accepted = self.accepted // 2 if warm and "forgets" in self.faults else self.accepted
        idle = "idle" in self.faults or (warm and "stops" in self.faults)
        steps = 0 if idle else max(1, -(-max_tokens // (1 + accepted)))
        proposed = steps * self.block_tokens - steps // 4 * self.cut_tokens
        self.counters = [self.counters[0] + steps, self.counters[1] + proposed, self.counters[2]]
        self.counters[2] += steps * accepted
        return ids[len(prompt) :]

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        if "prompt_logprobs" in body:
            return {"choices": [{"text": "", "prompt_logprobs": self.score(body["prompt"])}]}
        prompt = [ord(letter) % VOCAB for letter in body["prompt"]]
        warm = self.hit(body["prompt"])
        ids = self.write(prompt, body["max_tokens"], warm=warm)
        shown = {} if "mute" in self.faults else {"prompt_token_ids": prompt, "token_ids": ids}
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        if "secret" not in self.faults:
            usage["prompt_tokens_details"] = {"cached_tokens": len(prompt) // 2 if warm else 0}
        return {"choices": [{"text": str(ids), **shown}], "usage": usage}

    def score(self, ids: list[int]) -> list[Any]:
        entries: list[Any] = [None]
        for position in range(1, len(ids)):
            before = ids[:position]
            tokens = {ids[position], best_after(before)}
            entries.append({str(token): {"logprob": logprob_of(token, before)} for token in tokens})
        return entries

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        if "input_ids" in body:
            start, ids = body["logprob_start_len"], body["input_ids"]
            emitted: list[Any] = [[None, ids[start], None]]
            top: list[Any] = [None]
            for position in range(start + 1, len(ids)):
                before = ids[:position]
                emitted.append([logprob_of(ids[position], before), ids[position], None])
                top.append([[TOP, best_after(before), None]])
            return {"output_ids": [0], "meta_info": {"input_token_logprobs": emitted, "input_top_logprobs": top}}
        prompt = [ord(letter) % VOCAB for letter in body["text"]]
        if body.get("return_logprob"):
            return {"output_ids": [0], "meta_info": {"input_token_logprobs": [[None, id, None] for id in prompt]}}
        before_counters = list(self.counters)
        warm = self.hit(body["text"])
        ids = self.write(prompt, body["sampling_params"]["max_new_tokens"], warm=warm)
        moved = [now - then for now, then in zip(self.counters, before_counters, strict=True)]
        fields = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")
        meta = dict(zip(fields, moved, strict=True)) if moved[0] else {}
        cached = {} if "secret" in self.faults else {"cached_tokens": len(prompt) // 2 if warm else 0}
        meta |= {"prompt_tokens": len(prompt), **cached}
        return {"text": str(ids), "output_ids": ids, "meta_info": meta}


Check = Callable[..., dict[str, CheckResult]]


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optistack_dflash.probe_counters, "DEADLINE_S", 0.0)


@pytest.fixture(params=["vllm", "sglang"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def check(make_bench: Any, dialect: str) -> Check:
    def run(options: dict[str, Any] | None = None, **engine: Any) -> dict[str, CheckResult]:
        plan = make_bench(backend=dialect).plan(**(options or {}))
        fake = FakeEngine(dialect=dialect, **engine)
        return {result.id: result for result in optistack_dflash.optistack_probe(plan=plan, endpoint=fake.endpoint())}

    return run


def test_an_untrained_draft_passes_and_is_reported_as_it_is(check: Check) -> None:
    results = check()
    assert [result.status for result in results.values()] == [Status.PASS] * 4
    assert "0 accepted: acceptance length 1.00" in results["dflash/drafts-move"].engine_says
    assert "untrained" in results["dflash/drafts-move"].why


def test_a_useful_draft_is_reported_too(check: Check) -> None:
    says = check(accepted=3)["dflash/drafts-move"]
    assert "acceptance length 4.00" in says.engine_says
    assert says.why == ""


def test_an_engine_that_does_not_draft_fails(check: Check) -> None:
    results = check(faults={"idle"})
    assert results["dflash/drafts-move"].status is Status.FAIL
    assert results["dflash/greedy-margin"].status is Status.PASS


def test_another_number_of_draft_tokens_fails(check: Check) -> None:
    result = check(block_tokens=4)["dflash/draft-tokens"]
    assert (result.status, result.asked) == (Status.FAIL, "7 tokens a draft")
    assert result.engine_says == "4 tokens a draft"


@pytest.mark.parametrize(
    ("cut", "status"), [(1, Status.PASS), (3, Status.UNPROVEN), (4, Status.FAIL)], ids=["few", "many", "all-as-if"]
)
def test_drafts_that_are_cut_short_are_no_wrong_setting(check: Check, cut: int, status: Status) -> None:
    result = check(cut_tokens=cut)["dflash/draft-tokens"]
    assert (result.status, "cut short" in result.why) == (status, status is not Status.FAIL), result


@pytest.mark.parametrize("block_tokens", [6, 8])
def test_one_draft_token_more_or_less_fails(check: Check, block_tokens: int) -> None:
    assert check(block_tokens=block_tokens)["dflash/draft-tokens"].status is Status.FAIL


@pytest.mark.parametrize(("accepted", "status"), [(0, Status.FAIL), (3, Status.PASS)])
def test_acceptance_is_judged_only_when_asked(check: Check, accepted: int, status: Status) -> None:
    assert "dflash/acceptance-length" not in check(accepted=accepted)
    result = check({"min_acceptance_length": 2.5}, accepted=accepted)["dflash/acceptance-length"]
    assert result.status is status


def test_rounding_passes(check: Check) -> None:
    result = check(faults={"swap"})["dflash/greedy-margin"]
    assert result.status is Status.PASS
    assert "largest margin 0.250 nat" in result.engine_says


def test_a_token_that_the_target_would_not_pick_fails(check: Check) -> None:
    result = check(faults={"wrong"})["dflash/greedy-margin"]
    assert result.status is Status.FAIL
    assert "at token 9 of sequence 0" in result.engine_says


def test_an_engine_that_gives_no_ids_proves_nothing(make_bench: Any) -> None:
    fake = FakeEngine(faults={"mute"})
    results = optistack_dflash.optistack_probe(plan=make_bench(backend="vllm").plan(), endpoint=fake.endpoint())
    assert [result.status for result in results] == [Status.UNPROVEN]


def test_without_metrics_drafting_is_unproven_on_vllm(make_bench: Any) -> None:
    fake = FakeEngine(faults={"blind"})
    results = optistack_dflash.optistack_probe(plan=make_bench(backend="vllm").plan(), endpoint=fake.endpoint())
    assert [(result.id, result.status) for result in results] == [
        ("dflash/drafts-move", Status.UNPROVEN),
        ("dflash/greedy-margin", Status.PASS),
        ("dflash/warm-acceptance", Status.UNPROVEN),
    ]


@pytest.mark.parametrize(("fault", "check_id"), [("crash", "drafts-move"), ("crash-scoring", "greedy-margin")])
def test_an_error_of_the_engine_fails_and_is_shown(check: Check, fault: str, check_id: str) -> None:
    result = check(faults={fault})[f"dflash/{check_id}"]
    assert result.status is Status.FAIL
    assert "device-side assert" in result.why


def test_a_plan_without_dflash_is_not_probed(make_bench: Any) -> None:
    bench = make_bench(backend="vllm")
    plan = bench.plan()
    other = plan.model_copy(update={"stack": type(plan.stack)()})
    fake = FakeEngine()
    assert optistack_dflash.optistack_probe(plan=other, endpoint=fake.endpoint()) == []
    assert fake.requests == []


def test_drafts_accepted_as_often_after_a_hit_pass(check: Check) -> None:
    result = check(accepted=4)["dflash/warm-acceptance"]
    assert result.status is Status.PASS
    assert result.engine_says.startswith("acceptance length 5.00 warm, 5.00 cold")


def test_an_untrained_draft_shows_only_that_a_hit_does_not_stop_drafting(check: Check) -> None:
    result = check()["dflash/warm-acceptance"]
    assert (result.status, "no draft is accepted either way" in result.why) == (Status.PASS, True)


@pytest.mark.parametrize(
    ("fault", "status", "why"),
    [
        ("forgets", Status.FAIL, "does not come back"),
        ("stops", Status.FAIL, "does not draft after a hit"),
        ("uncached", Status.UNPROVEN, "no warmer"),
        ("secret", Status.UNPROVEN, "cache report"),
    ],
)
def test_what_is_lost_after_a_hit_fails_and_what_was_no_hit_proves_nothing(
    check: Check, fault: str, status: Status, why: str
) -> None:
    result = check(accepted=4, faults={fault})["dflash/warm-acceptance"]
    assert (result.status, why in result.why) == (status, True), result


def test_a_draft_that_is_nearly_always_right_leaves_too_few_steps_to_tell(check: Check) -> None:
    result = check(block_tokens=16, accepted=15)["dflash/warm-acceptance"]
    assert (result.status, "too few" in result.why) == (Status.UNPROVEN, True), result


def test_of_attention_groups_the_same_one_is_asked_again(make_bench: Any, dialect: str) -> None:
    plan = make_bench(backend=dialect, parallel=ParallelSection(tensor=4, attention_data=4)).plan()
    fake = FakeEngine(dialect=dialect, accepted=4, groups=4)
    results = optistack_dflash.optistack_probe(plan=plan, endpoint=fake.endpoint())
    assert [result.status for result in results if result.id == CHECK] == [Status.PASS]


def test_without_prefix_caching_no_run_is_warm(make_bench: Any) -> None:
    bench = make_bench(backend="vllm", others=[Serving(prefix_caching=choose(False))])
    results = optistack_dflash.optistack_probe(plan=bench.plan(), endpoint=FakeEngine().endpoint())
    assert [(r.status, "off" in r.why) for r in results if r.id == CHECK] == [(Status.UNPROVEN, True)]


@pytest.mark.parametrize("dialect", ["sglang"])
def test_an_engine_that_refuses_logprobs_is_seen_to_draft_all_the_same(check: Check) -> None:
    # SGLang 0.5.17 on an H200.
    results = check(accepted=3, faults={"no-logprobs"})
    assert results["dflash/drafts-move"].status is Status.PASS
    assert results["dflash/greedy-margin"].status is Status.UNPROVEN
    assert "log probabilities" in results["dflash/greedy-margin"].why
