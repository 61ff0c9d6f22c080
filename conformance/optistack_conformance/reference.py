"""What a baseline measured: kept as a value, so that it may have run earlier, and elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from optistack.errors import InputError
from optistack_conformance.answers import NotScoredError, prompt_tokens
from optistack_conformance.client import CHAT, Client
from optistack_conformance.engine import EngineInfo, read_engine
from optistack_conformance.evals.items import digest, load_items
from optistack_conformance.evals.run import passed, run_items
from optistack_conformance.report import Subject
from optistack_conformance.scoring import Scorer
from optistack_conformance.selection import Selection
from optistack_conformance.sequences import fresh_prompts, measure, prefill_again, scored_tokens
from optistack_conformance.statistics.kl import k3
from optistack_conformance.template import ChatTemplate


class Key(BaseModel):
    """What must be the same for a recorded baseline to be one. None where it was not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint_fingerprint: str | None
    chat_template_hash: str | None
    engine: str
    engine_version: str
    seed: int
    profile: str
    items_digest: str


class Sequence(BaseModel):
    """A greedy generation of the baseline: token ids, and log probabilities as decoded and as scored twice."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    decode_logprobs: tuple[float, ...]
    prefill_logprobs: tuple[float, ...]
    batched_logprobs: tuple[float, ...]


class Reference(BaseModel):
    """A baseline. ``worst_margin_nat`` is how far below its best its own greedy tokens lie at most."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Key
    subject: Subject
    prompt_tokens: dict[str, int]
    sequences: tuple[Sequence, ...]
    worst_margin_nat: float | None
    passed: dict[str, bool]

    @property
    def decode_floor(self) -> list[float]:
        """KL of its own decode against its own prefill, by sequence."""
        return [k3(one.decode_logprobs, one.prefill_logprobs) for one in self.sequences]

    @property
    def prefill_floor(self) -> list[float]:
        """KL between two scorings of the same tokens, alone and in a batch, by sequence."""
        return [k3(one.prefill_logprobs, one.batched_logprobs) for one in self.sequences]


def subject(client: Client, engine: EngineInfo, kv_dtype: str | None) -> Subject:
    return Subject(
        where=client.url,
        engine=engine.name,
        engine_version=engine.version,
        model=engine.model,
        kv_dtype=kv_dtype,
    )


def fingerprint(selection: Selection) -> str | None:
    """Of the checkpoint that the selection names. Raises InputError when it cannot be read."""
    if selection.checkpoint is None:
        return None
    from optistack.facts.checkpoint import load_model

    return load_model(selection.checkpoint).fingerprint


def key_of(selection: Selection, engine: EngineInfo) -> Key:
    template = ChatTemplate(Path(selection.checkpoint)) if selection.checkpoint else None
    return Key(
        checkpoint_fingerprint=fingerprint(selection),
        chat_template_hash=template.hash if template else None,
        engine=engine.name,
        engine_version=engine.version,
        seed=selection.seed,
        profile=selection.profile,
        items_digest=digest(load_items(selection.sizes, longest_tokens=engine.max_tokens)),
    )


def measure_reference(client: Client, selection: Selection) -> Reference:
    """Measure the server behind ``client`` as a baseline; takes as long as tier 1 and the evals."""
    from optistack_conformance.tiers.contract.chats import MESSAGES

    engine = read_engine(client)
    counts = {
        name: prompt_tokens(client.ask(CHAT, messages=messages, max_tokens=1, temperature=0.0), client.url)
        for name, messages in MESSAGES.items()
    }
    sequences, worst = _sequences(client, engine, selection)
    items = load_items(selection.sizes, longest_tokens=engine.max_tokens)
    return Reference(
        key=key_of(selection, engine),
        subject=subject(client, engine, engine.kv_dtype),
        prompt_tokens=counts,
        sequences=sequences,
        worst_margin_nat=worst,
        passed=passed(run_items(client, items, concurrency=selection.concurrency)),
    )


def save_reference(reference: Reference, path: Path) -> None:
    """Write it; never half of it."""
    from optistack.files import write_file

    write_file(path, reference.model_dump_json(indent=1))


def load_reference(path: Path, expected: Key, *, other_checkpoint: bool = False) -> Reference:
    """Raises InputError when the file cannot be read, or is of something else than ``expected``.

    ``other_checkpoint``: the candidate has other weights by design (a quantized checkpoint).
    """
    try:
        found = Reference.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"There is no recorded baseline {path}.", fix="Make it with --record.") from error
    except ValidationError as error:
        raise InputError(f"{path} is no recorded baseline of this optistack.", fix="Record it anew.") from error
    for name, mine in expected:
        theirs = getattr(found.key, name)
        unknown = mine is None or theirs is None
        if mine == theirs or unknown or (other_checkpoint and name == "checkpoint_fingerprint"):
            continue
        what = name.replace("_", " ")
        raise InputError(f"{path} has another {what}: {theirs}, and here it is {mine}.", fix="Record it anew.")
    return found


@contextmanager
def open_reference(selection: Selection) -> Iterator[Reference | None]:
    """The baseline that ``selection`` names: read from its file, or measured now; None when it names none."""
    key = os.environ.get(selection.api_key_variable)
    if selection.baseline_file is not None:
        with Client(selection.endpoint, api_key=key, timeout_s=selection.timeout_s) as client:
            expected = key_of(selection, read_engine(client))
        path = Path(selection.baseline_file)
        yield load_reference(path, expected, other_checkpoint=selection.lossy == "nvfp4")
    elif selection.baseline is not None:
        with Client(selection.baseline, api_key=key, timeout_s=selection.timeout_s) as client:
            yield measure_reference(client, selection)
    else:
        yield None


def _sequences(client: Client, engine: EngineInfo, selection: Selection) -> tuple[tuple[Sequence, ...], float | None]:
    try:
        scorer = Scorer(client, engine.name)
        prompts = fresh_prompts(
            scorer, number=selection.sizes.sequences, page_tokens=engine.page_tokens, seed=f"reference/{selection.seed}"
        )
    except NotScoredError:
        return (), None
    sizes = selection.sizes
    found = measure(scorer, prompts, max_tokens=sizes.sequence_tokens, concurrency=selection.concurrency)
    again = prefill_again(scorer, found, concurrency=selection.concurrency)
    sequences = tuple(
        Sequence(
            prompt_ids=one.decoded.prompt_ids,
            output_ids=one.decoded.output_ids,
            decode_logprobs=one.decoded.logprobs,
            prefill_logprobs=tuple(one.prefill_logprobs),
            batched_logprobs=tuple(batched),
        )
        for one, batched in zip(found, again, strict=True)
    )
    return sequences, max((token.margin_nat for token in scored_tokens(found)), default=None)
