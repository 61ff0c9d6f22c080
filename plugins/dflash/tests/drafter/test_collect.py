"""Collecting keeps the ids that the engine emitted, shard by shard, and goes on after it was broken off."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from optistack.errors import CheckFailedError, InputError
from optistack.verify.endpoint import Endpoint
from optistack_dflash.drafter.collect import Collected, Sampling, collect, read_prompts
from optistack_dflash.drafter.shards import read_folder, read_shard

PROMPTS = [[number, number + 1, number + 2] for number in range(10)]
TEXT = "def add(left, right):\n    return left + right\n\n\ndef sub(left, right):\n    return left - right\n" * 20


def engine(kind: str, fail_after: int = 1000) -> Callable[[httpx.Request], httpx.Response]:
    """An engine whose answer to ids is the last of them, counted up."""
    served = 0

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal served
        path = request.url.path
        if path == "/version":
            return httpx.Response(200, json={"version": "0.32.0"}) if kind == "vllm" else httpx.Response(404)
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "served"}]})
        served += 1
        if served > fail_after:
            return httpx.Response(500, text="out of memory")
        body = json.loads(request.content)
        if kind == "vllm":
            assert (path, body["return_token_ids"], body["model"]) == ("/v1/completions", True, "served")
            answer = [body["prompt"][-1] + step for step in range(1, body["max_tokens"] + 1)]
            return httpx.Response(200, json={"choices": [{"text": "?", "token_ids": answer}]})
        assert path == "/generate"
        count = body["sampling_params"]["max_new_tokens"]
        return httpx.Response(200, json={"output_ids": [body["input_ids"][-1] + step for step in range(1, count + 1)]})

    return handle


def run(checkpoint: Path, out: Path, handle: Callable[[httpx.Request], httpx.Response], **given: Any) -> Collected:
    with Endpoint("http://engine", transport=httpx.MockTransport(handle)) as endpoint:
        fields = {"concurrency": 1, "shard": 4, **given}
        sampling = fields.pop("sampling", Sampling(max_tokens=5))
        return collect(endpoint, PROMPTS, checkpoint, out, sampling, **fields)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_ids_are_those_that_the_engine_emitted(kind: str, checkpoint: Path, target: Any, tmp_path: Path) -> None:
    found = run(checkpoint, tmp_path, engine(kind), domain="code")
    assert found == Collected(shards=3, kept=0, sequences=10, tokens=50)
    sequences = read_folder(tmp_path, revision=target.revision, template=target.template, target=target.name)
    assert [one.ids for one in sequences] == [tuple(range(number, number + 8)) for number in range(10)]
    assert {(one.prompt_tokens, one.domain) for one in sequences} == {(3, "code")}
    provenance, _ = read_shard(tmp_path / "part-00000.safetensors")
    assert provenance.engine == ("vllm 0.32.0" if kind == "vllm" else "sglang")
    assert dict(provenance.sampling) == {"max_tokens": 5, "temperature": 0.0, "top_p": 1.0}


def test_a_collector_that_died_loses_its_last_shard_only(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError, match="answered 500: out of memory"):
        run(checkpoint, tmp_path, engine("vllm", fail_after=6))
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.safetensors"]
    assert run(checkpoint, tmp_path, engine("vllm")) == Collected(shards=2, kept=1, sequences=6, tokens=30)


def test_a_folder_of_other_answers_is_not_mixed_with(checkpoint: Path, tmp_path: Path) -> None:
    run(checkpoint, tmp_path, engine("vllm"))
    with pytest.raises(InputError, match="was collected otherwise"):
        run(checkpoint, tmp_path, engine("vllm"), sampling=Sampling(temperature=0.8, max_tokens=5))


def test_a_size_limit_ends_it(checkpoint: Path, tmp_path: Path) -> None:
    assert run(checkpoint, tmp_path, engine("vllm"), max_bytes=1).shards == 1


def test_an_engine_without_token_ids_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    def old(request: httpx.Request) -> httpx.Response:
        if request.url.path in ("/version", "/v1/models"):
            return engine("vllm")(request)
        return httpx.Response(200, json={"choices": [{"text": "hello"}]})

    with pytest.raises(CheckFailedError, match="gives no token ids"):
        run(checkpoint, tmp_path, old)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE, as most models have, with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet))
    folder = tmp_path_factory.mktemp("tokenizer")
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    made.chat_template = "{% for one in messages %}<{{ one.role }}>{{ one.content }}{% endfor %}"
    made.save_pretrained(folder)
    return folder


def test_text_is_no_record_of_ids(tokenizer_folder: Path) -> None:
    """Why ids are recorded: a model may emit any ids, text tokenized again gives the canonical ones alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    canonical = tokenizer(TEXT)["input_ids"]
    assert tokenizer(tokenizer.decode(canonical))["input_ids"] == canonical
    torch.manual_seed(0)
    sampled = torch.randint(0, len(tokenizer), (50, 20)).tolist()
    changed = sum(tokenizer(tokenizer.decode(ids))["input_ids"] != ids for ids in sampled)
    assert changed > 40


def test_prompts_are_ids_text_or_messages(tokenizer_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"ids": [1, 2]}, {"prompt": "def add"}, {"messages": [{"role": "user", "content": "add"}]}]
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    first, second, third = read_prompts(file, tokenizer_folder)
    assert first == [1, 2]
    assert tokenizer.decode(second) == "def add"
    assert tokenizer.decode(third) == "<user>add"


@pytest.mark.parametrize("line", ['{"text": "hello"}', "hello", '{"ids": [1], "prompt": "a"}', "3"])
def test_a_line_that_is_no_prompt_is_named(line: str, tokenizer_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"ids": [1]}\n' + line + "\n")
    with pytest.raises(InputError, match="Line 2 of .* is no prompt"):
        read_prompts(file, tokenizer_folder)
