"""Our network computes what the reference implementation, the ``dflash`` package of z-lab, computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optistack_dflash.drafter.network import Drafter, save_drafter
from optistack_dflash.drafter.shape import DrafterShape

model = pytest.importorskip(
    "dflash.model", reason="the reference is not installed: pip install --no-deps dflash==0.1.0"
)


def test_one_block_is_as_the_reference_drafts_it(shape: DrafterShape, tmp_path: Path) -> None:
    torch.manual_seed(0)
    drafter = Drafter(shape)
    with torch.no_grad():
        for value in drafter.parameters():
            value.copy_((value + 0.1 * torch.randn_like(value)).to(torch.bfloat16))
    save_drafter(drafter, tmp_path)
    reference = model.DFlashDraftModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert (reference.block_size, reference.mask_token_id) == (shape.block_size, shape.mask_token_id)
    assert tuple(reference.target_layer_ids) == shape.captured_layers

    context, size = 11, shape.block_size
    states, block = torch.randn(1, context, 2 * shape.hidden), torch.randn(1, size, shape.hidden)
    positions = torch.arange(context + size)[None]
    with torch.no_grad():
        theirs = reference(position_ids=positions, noise_embedding=block, target_hidden=states)
        mask = torch.ones(1, 1, size, context + size, dtype=torch.bool)
        ours = drafter(states, block, positions[:, :context], positions[:, context:], mask)
    assert torch.allclose(ours, theirs, atol=1e-4), (ours - theirs).abs().max()
