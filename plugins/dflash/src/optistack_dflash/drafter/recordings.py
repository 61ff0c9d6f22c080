"""What the router's tap recorded, as shards to train on."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from optistack.errors import InputError
from optistack_dflash.drafter.collect import Collected
from optistack_dflash.drafter.provenance import Provenance, fingerprint, template_hash
from optistack_dflash.drafter.shards import Recorded, write_shard


def convert_recordings(
    folder: Path, checkpoint: Path, out: Path, *, model: str | None = None, domain: str = "", shard: int = 256
) -> Collected:
    """Write what the tap kept in ``folder`` to ``out``, each way of sampling in shards of its own.

    That the answers are those of ``checkpoint`` is the caller's word. InputError when the recordings are of several
    models and ``model`` names none of them, when they are damaged, when they hold ids that the checkpoint has not,
    or when ``out`` holds shards already.
    """
    if any(out.glob("*.safetensors")):
        raise InputError(f"{out} holds shards already.", fix="Give another --out folder.")
    vocabulary = int(json.loads((checkpoint / "config.json").read_text())["vocab_size"])
    lines = [line for line in _lines(folder, vocabulary) if model in (None, line["model"])]
    models = sorted({line["model"] for line in lines})
    if len(models) != 1:
        raise InputError(
            f"{folder} has recordings of the models {', '.join(models)}." if models else f"{folder} has no recordings.",
            fix="Say which with --model." if models else "The router's option `tap` says where they are.",
        )
    by_sampling: dict[str, list[Recorded]] = defaultdict(list)
    for line in lines:
        ids = (*line["prompt"], *line["answer"])
        by_sampling[json.dumps(line["sampling"], sort_keys=True)].append(Recorded(ids, len(line["prompt"]), domain))
    revision, template, written = fingerprint(checkpoint), template_hash(checkpoint), 0
    for sampling, sequences in sorted(by_sampling.items()):
        fields = tuple(sorted(json.loads(sampling).items()))
        provenance = Provenance(checkpoint.name, revision, template, fields, f"tap of {models[0]}")
        for begin in range(0, len(sequences), shard):
            path = out / f"part-{written:05d}.safetensors"
            write_shard(path, sequences[begin : begin + shard], domain=domain, provenance=provenance)
            written += 1
    return Collected(written, 0, len(lines), sum(len(line["answer"]) for line in lines))


def _lines(folder: Path, vocabulary: int) -> list[dict[str, Any]]:
    found = []
    for file in sorted(folder.glob("tap-*.jsonl")):
        for number, text in enumerate(file.read_text().splitlines(), 1):
            try:
                line = json.loads(text)
                largest = max(max(line["prompt"]), max(line["answer"]))
                found.append({key: line[key] for key in ("model", "sampling", "prompt", "answer")})
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"Line {number} of {file} is no recording: {error}.") from None
            if largest >= vocabulary:
                raise InputError(
                    f"Line {number} of {file} has the token {largest}, and the target's vocabulary has {vocabulary}.",
                    fix="Give the checkpoint that was served while it was recorded.",
                )
    return found
