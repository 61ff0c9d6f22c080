"""Recorded tokens on disk: safetensors files of whole sequences, each written in one go, with their provenance.

A shard holds ``tokens`` (int32, all sequences one after the other, prompt and answer), ``ends`` (int64, where each
sequence ends) and ``prompts`` (int32, how many tokens of each are its prompt). Its metadata says ``domain`` and
the fields of :class:`~optistack_dflash.drafter.provenance.Provenance`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from optistack.errors import InputError
from optistack_dflash.drafter.network import write_whole
from optistack_dflash.drafter.provenance import Provenance
from optistack_dflash.drafter.shard_files import shards_in

FORMAT = "optistack-dflash-tokens-1"


@dataclass(frozen=True)
class Recorded:
    """One prompt with the target's answer, as ids. ``prompt_tokens`` of ``ids`` are the prompt."""

    ids: tuple[int, ...]
    prompt_tokens: int
    domain: str = ""


def write_shard(path: Path, sequences: Sequence[Recorded], *, domain: str, provenance: Provenance) -> None:
    """Write ``sequences`` to ``path``, whole or not at all. InputError when the disk is full."""
    ends = torch.tensor([len(one.ids) for one in sequences], dtype=torch.int64).cumsum(0)
    tensors = {
        "tokens": torch.tensor([token for one in sequences for token in one.ids], dtype=torch.int32),
        "ends": ends,
        "prompts": torch.tensor([one.prompt_tokens for one in sequences], dtype=torch.int32),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, save(tensors, metadata={"format": FORMAT, "domain": domain, **provenance.metadata()}))


def read_shard(path: Path) -> tuple[Provenance, list[Recorded]]:
    """The provenance and the sequences of ``path``. InputError when it is damaged or no shard of ours."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InputError(
                    f"{path} is no shard of recorded tokens.", fix="Shards are written by `optistack dflash collect`."
                )
            tokens, ends, prompts = (file.get_tensor(name).tolist() for name in ("tokens", "ends", "prompts"))
        provenance = Provenance.of(metadata)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read: {error}.", fix="Delete it and collect again; the other shards are kept."
        ) from error
    starts = [0, *ends]
    return provenance, [
        Recorded(tuple(tokens[begin:end]), prompt, metadata["domain"])
        for begin, end, prompt in zip(starts, ends, prompts, strict=False)
    ]


def read_folder(folder: Path, *, revision: str, template: str, target: str) -> list[Recorded]:
    """Every sequence below ``folder``. InputError naming the first shard that another target or template wrote."""
    return [one for path in shards_in(folder) for one in _checked(path, revision, template, target)]


def _checked(path: Path, revision: str, template: str, target: str) -> Iterator[Recorded]:
    provenance, sequences = read_shard(path)
    if provenance.revision != revision:
        raise InputError(
            f"{path} was written by another target: {provenance.target} (weights {provenance.revision}), and this one "
            f"is {target} (weights {revision}).",
            fix="Train on what this target wrote: collect anew, or leave the shard out.",
        )
    if provenance.template != template:
        raise InputError(
            f"{path} was collected with another chat template ({provenance.template}) than that of {target} "
            f"({template}).",
            fix="Collect anew with the template that is served, or leave the shard out.",
        )
    yield from sequences
