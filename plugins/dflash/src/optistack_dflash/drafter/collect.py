"""Recording what a running engine answers, as the token ids that it emitted: text is never tokenized again.

Prompts are tokenized here, with the checkpoint's own tokenizer and chat template, and sent as ids; both engines give
the ids of their answers (vLLM: ``return_token_ids`` of /v1/completions; SGLang: ``output_ids`` of /generate).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optistack.errors import CheckFailedError, InputError
from optistack.verify.endpoint import Endpoint
from optistack_dflash.drafter.provenance import Provenance, fingerprint, template_hash
from optistack_dflash.drafter.shards import Recorded, read_shard, write_shard
from optistack_dflash.prompt_file import read_prompt_file


@dataclass(frozen=True)
class Sampling:
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 384

    def fields(self) -> tuple[tuple[str, Any], ...]:
        return (("max_tokens", self.max_tokens), ("temperature", self.temperature), ("top_p", self.top_p))


@dataclass(frozen=True)
class Collected:
    """``shards`` were written now and ``kept`` were there before; ``tokens`` are those of the new answers."""

    shards: int
    kept: int
    sequences: int
    tokens: int


class Engine:
    """A running vLLM or SGLang that answers token ids with token ids."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        version = endpoint.get_json("/version")
        self._vllm = version is not None
        self._model = endpoint.model() if self._vllm else ""
        self.name = f"vllm {version.get('version', '')}".strip() if version is not None else "sglang"

    def answer(self, ids: Sequence[int], sampling: Sampling) -> tuple[int, ...]:
        """The ids of the answer to ``ids``. CheckFailedError when the engine refuses or gives none."""
        path, body = self._request(list(ids), sampling)
        response = self._endpoint.request("POST", path, json=body)
        if response.status_code != 200:
            raise CheckFailedError(f"{self._endpoint.url}{path} answered {response.status_code}: {response.text[:300]}")
        raw = response.json()
        found = raw["choices"][0].get("token_ids") if self._vllm else raw.get("output_ids")
        if found is None:
            raise CheckFailedError(
                f"{self._endpoint.url}{path} gives no token ids.",
                fix="Use vLLM 0.10.2 or later, or SGLang's own /generate.",
            )
        return tuple(found)

    def _request(self, ids: list[int], sampling: Sampling) -> tuple[str, dict[str, Any]]:
        common = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if self._vllm:
            tokens = {"max_tokens": sampling.max_tokens, "return_token_ids": True}
            return "/v1/completions", {"model": self._model, "prompt": ids, **tokens, **common}
        return "/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": sampling.max_tokens, **common}}


def read_prompts(file: Path, checkpoint: Path) -> list[list[int]]:
    """The prompts of a file as the ids that ``checkpoint``'s tokenizer and chat template make of them.

    InputError as :func:`optistack_dflash.prompt_file.read_prompt_file` raises it.
    """
    from transformers import AutoTokenizer

    prompts = read_prompt_file(file)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)

    def ids(kind: str, given: Any) -> list[int]:
        if kind == "ids":
            return list(given)
        if kind == "prompt":
            return list(tokenizer(given)["input_ids"])
        text = tokenizer.apply_chat_template(given, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return [ids(one.kind, one.given) for one in prompts]


def collect(
    endpoint: Endpoint,
    prompts: Sequence[Sequence[int]],
    checkpoint: Path,
    out: Path,
    sampling: Sampling,
    *,
    domain: str = "",
    concurrency: int = 16,
    shard: int = 256,
    max_bytes: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Collected:
    """Record the answers to ``prompts`` in ``out``, a shard for each ``shard`` of them, until ``max_bytes`` are there.

    Shards that are there are kept, so a collector that died goes on with the first one missing. InputError when ``out``
    holds shards of another target, template or sampling.
    """
    engine = Engine(endpoint)
    provenance = Provenance(
        checkpoint.name, fingerprint(checkpoint), template_hash(checkpoint), sampling.fields(), engine.name
    )
    written = kept = sequences = tokens = 0
    with ThreadPoolExecutor(concurrency) as pool:
        for path, part in _parts(prompts, out, shard):
            if path.exists():
                _same(path, provenance, part)
                kept += 1
                continue
            if max_bytes is not None and _size(out) >= max_bytes:
                tell(f"{out} has reached its size limit of {max_bytes} bytes")
                break
            answers = list(pool.map(lambda ids: engine.answer(ids, sampling), part))
            recorded = [Recorded((*ids, *answer), len(ids)) for ids, answer in zip(part, answers, strict=True)]
            write_shard(path, recorded, domain=domain, provenance=provenance)
            written, sequences = written + 1, sequences + len(recorded)
            tokens += sum(map(len, answers))
            tell(f"{path}: {len(recorded)} answers, {sum(map(len, answers))} tokens")
    return Collected(written, kept, sequences, tokens)


def _parts(prompts: Sequence[Sequence[int]], out: Path, shard: int) -> Iterator[tuple[Path, Sequence[Sequence[int]]]]:
    for number, begin in enumerate(range(0, len(prompts), shard)):
        yield out / f"part-{number:05d}.safetensors", prompts[begin : begin + shard]


def _same(path: Path, provenance: Provenance, part: Sequence[Sequence[int]]) -> None:
    found, sequences = read_shard(path)
    asked = [tuple(ids) for ids in part]
    ours = (provenance.revision, provenance.template, provenance.sampling)
    theirs = (found.revision, found.template, found.sampling)
    if ours != theirs or [one.ids[: one.prompt_tokens] for one in sequences] != asked:
        raise InputError(
            f"{path} was collected otherwise: another target, template, sampling or list of prompts.",
            fix="Give another --out folder.",
        )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
