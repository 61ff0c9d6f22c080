"""What commands load: the target on its device, and answers that were recorded from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optistack.cli.devices import check_device
from optistack_dflash.commands.app import checkpoint_folder

if TYPE_CHECKING:
    import torch

    from optistack_dflash.drafter.corpus import Corpus
    from optistack_dflash.drafter.target import Target


def load_corpus(target: Target, folders: list[Path], max_tokens: int) -> Corpus:
    from optistack_dflash.drafter.corpus import Corpus
    from optistack_dflash.drafter.shards import read_folder

    sequences = [
        one
        for folder in folders
        for one in read_folder(folder, revision=target.revision, template=target.template, target=target.name)
    ]
    return Corpus(sequences, target.device, max_tokens=max_tokens)


def load_target(text: str, device: str | None) -> Target:
    """The target ``text`` on ``device``, as :func:`device_named` says. InputError when there is none."""
    from optistack_dflash.drafter.target import Target

    return Target.load(checkpoint_folder(text), device_named(device))


def device_named(text: str | None) -> torch.device:
    """The torch device ``text``, or the best there is. InputError when this machine, or this torch, has none."""
    import torch

    if text is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device(text, torch.cuda.device_count())
    return torch.device(text)
