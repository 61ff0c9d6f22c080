"""Tokens with their log probabilities, once as they were decoded and once as part of a prefill.

This is what text cannot show: a decode that reads wrong KV, or accepts a token that the model would not have drawn,
gives other log probabilities than one prefill of the same tokens, which neither drafts nor reads a cache.
Natively on vLLM (``/v1/completions`` with token ids and prompt logprobs) and SGLang (``/generate``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optistack_conformance import greedy
from optistack_conformance.answers import NotScoredError, read_from, sglang_answer, sglang_scores
from optistack_conformance.client import COMPLETIONS, Client
from optistack_conformance.margin import ScoredToken
from optistack_conformance.statistics.acceptance import Drafts

NEUTRAL = {"top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
"""Sampling without any filter: engines take defaults for these from the checkpoint's generation config."""


@dataclass(frozen=True)
class Decoded:
    """A generation. ``logprobs`` are those of the emitted tokens at the time; ``cached_tokens`` and ``drafts`` are None
    where the answer does not tell them."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int | None = None
    drafts: Drafts | None = None


@dataclass(frozen=True)
class Position:
    """One token as a prefill sees it. ``top`` has token ids and log probabilities, the likeliest first; the order of
    equal ones does not depend on ``token``."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Scorer:
    """Generates and scores on one server. ``engine`` is ``vllm`` or ``sglang``; others cannot (NotScoredError)."""

    def __init__(self, client: Client, engine: str) -> None:
        if engine not in ("vllm", "sglang"):
            raise NotScoredError(f"{client.url} is neither vLLM nor SGLang: there is no way to have tokens scored.")
        self.client = client
        self.engine = engine

    def token_ids(self, text: str) -> tuple[int, ...]:
        """``text`` as the engine tokenizes it. NotScoredError where it does not say."""
        return greedy.prompt_ids(self.client, text)

    def decode(
        self, prompt: Sequence[int], max_tokens: int, *, temperature: float = 0.0, seed: int | None = None
    ) -> Decoded:
        """``max_tokens`` tokens after ``prompt``, running on over an end-of-text token."""
        sampling = {**NEUTRAL, "temperature": temperature, "ignore_eos": True}
        with read_from(self.client.url):
            if self.engine == "vllm":
                return self._vllm_decode(prompt, max_tokens, {**sampling, "top_k": 0, "seed": seed})
            return self._sglang_decode(prompt, max_tokens, {**sampling, "top_k": -1, "sampling_seed": seed})

    def greedy_ids(self, prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """The greedy tokens of :meth:`decode` alone, which an engine that refuses log probabilities gives, too."""
        sampling = {**NEUTRAL, "temperature": 0.0, "ignore_eos": True}
        with read_from(self.client.url):
            if self.engine == "vllm":
                asked = {"max_tokens": max_tokens, "return_token_ids": True, "top_k": 0, **sampling}
                ids = self.client.ask(COMPLETIONS, prompt=list(prompt), **asked)["choices"][0].get("token_ids")
            else:
                params = {**sampling, "top_k": -1, "max_new_tokens": max_tokens}
                ids = self._generate(prompt, params).get("output_ids")
            if ids is None:
                raise NotScoredError(f"{self.client.url} returns no token ids.")
            return tuple(map(int, ids))

    def prefill(self, prompt: Sequence[int], output: Sequence[int], *, top: int = 1) -> tuple[Position, ...]:
        """Each token of ``output``, scored as part of one prefill of ``prompt`` and ``output``."""
        with read_from(self.client.url):
            found = (self._vllm_prefill if self.engine == "vllm" else self._sglang_prefill)(prompt, output, top)
        if len(found) != len(output):
            raise NotScoredError(f"{self.client.url} scored {len(found)} of {len(output)} tokens.")
        return tuple(found)

    def _vllm_decode(self, prompt: Sequence[int], max_tokens: int, sampling: dict[str, Any]) -> Decoded:
        body = self.client.ask(
            COMPLETIONS, prompt=list(prompt), max_tokens=max_tokens, logprobs=1, return_token_ids=True, **sampling
        )
        choice = body["choices"][0]
        ids = choice.get("token_ids")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if ids is None or logprobs is None or len(ids) != len(logprobs):
            raise NotScoredError(f"{self.client.url} returns no token ids with log probabilities.")
        cached = ((body.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        return Decoded(tuple(prompt), tuple(ids), tuple(map(float, logprobs)), cached)

    def _vllm_prefill(self, prompt: Sequence[int], output: Sequence[int], top: int) -> list[Position]:
        # Asking for prompt logprobs makes vLLM compute the whole prompt anew instead of reading cached blocks.
        body = self.client.ask(
            COMPLETIONS, prompt=[*prompt, *output], max_tokens=1, temperature=0.0, prompt_logprobs=top
        )
        entries = (body["choices"][0].get("prompt_logprobs") or [])[len(prompt) :]
        found = []
        for token, entry in zip(output, entries, strict=False):
            scores = {int(key): float(value["logprob"]) for key, value in (entry or {}).items()}
            if token in scores:
                # Equal ones, which are frequent in BF16, stay in the engine's order. To put the emitted token first
                # would say of each sample that it is likelier than it is.
                ranks = {int(key): value.get("rank") or 0 for key, value in entry.items()}
                ranked = sorted(scores.items(), key=lambda pair: (-pair[1], ranks[pair[0]], pair[0]))
                found.append(Position(token, scores[token], tuple(ranked[:top])))
        return found

    def _sglang_decode(self, prompt: Sequence[int], max_tokens: int, sampling: dict[str, Any]) -> Decoded:
        params = {key: value for key, value in sampling.items() if value is not None}
        meta = self._generate(prompt, {**params, "max_new_tokens": max_tokens}, return_logprob=True)["meta_info"]
        pairs = meta.get("output_token_logprobs") or []
        return Decoded(
            tuple(prompt),
            tuple(int(entry[1]) for entry in pairs),
            tuple(float(entry[0]) for entry in pairs),
            meta.get("cached_tokens"),
            Drafts(float(meta["spec_verify_ct"]), float(meta.get("spec_num_correct_drafts") or 0))
            if meta.get("spec_verify_ct")
            else None,
        )

    def _sglang_prefill(self, prompt: Sequence[int], output: Sequence[int], top: int) -> list[Position]:
        meta = self._generate(
            [*prompt, *output],
            {"temperature": 0.0, "max_new_tokens": 1},
            return_logprob=True,
            # From the very first token: SGLang reads from the cache what lies before the start.
            logprob_start_len=0,
            top_logprobs_num=top,
        )["meta_info"]
        emitted = (meta.get("input_token_logprobs") or [])[len(prompt) :]
        tops = (meta.get("input_top_logprobs") or [])[len(prompt) :]
        return [
            Position(token, float(entry[0]), tuple((int(one[1]), float(one[0])) for one in best))
            for token, entry, best in zip(output, emitted, tops, strict=False)
            if entry[1] == token and best
        ]

    def _generate(self, ids: Sequence[int], sampling_params: dict[str, Any], **fields: Any) -> dict[str, Any]:
        body = {"input_ids": list(ids), "sampling_params": sampling_params, **fields}
        read = sglang_scores if fields.get("return_logprob") else sglang_answer
        return read(self.client.request("POST", "/generate", json=body))


def as_scored(positions: Sequence[Position], sequence: int) -> list[ScoredToken]:
    """For :func:`optistack_conformance.margin.judge`. A token that is as likely as the likeliest is the best."""
    return [
        ScoredToken(
            sequence,
            number,
            one.token,
            one.logprob,
            one.token if one.logprob >= one.top[0][1] else one.top[0][0],
            max(one.top[0][1], one.logprob),
        )
        for number, one in enumerate(positions)
    ]
