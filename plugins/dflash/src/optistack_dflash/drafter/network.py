"""The drafter's network: a few Qwen3 layers that attend to the target's hidden states and, both ways, to their block.

Geometry, as vLLM (model_executor/models/qwen3_dflash.py, v1/spec_decode/dflash.py), SGLang and the ``dflash`` package
run it. With the anchor at position ``a``, the last token known:

- context: positions 0 to a-1. Captured states of the target, side by side, go through ``fc`` and ``hidden_norm``;
  each layer makes K and V of the result, which no layer changes further;
- queries: positions a to a+B-1, the embeddings of the anchor and of B-1 mask tokens. Each sees the context and the
  whole block. The output at position p, through the target's head, predicts the token at p itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

from optistack import files
from optistack.errors import InputError
from optistack_dflash.drafter.float8 import CONFIG, Float8Linear, from_float8, is_float8, to_float8
from optistack_dflash.drafter.shape import DrafterShape


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps)

    def forward(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """``x`` [B, Q, H], ``context`` [B, S, H], ``rope`` for [context | x], ``mask`` [B, 1, Q, S+Q]."""
        batch, queries, _ = x.shape
        both = torch.cat((context, x), dim=1)
        q = self.q_norm(self.q_proj(x).view(batch, queries, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(both).view(batch, -1, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(both).view(batch, -1, self.kv_heads, self.head_dim).transpose(1, 2)
        cos, sin = rope
        q = rotate(q, cos[:, :, -queries:], sin[:, :, -queries:])
        k = rotate(k, cos, sin)
        groups = self.heads // self.kv_heads
        out = functional.scaled_dot_product_attention(
            q, k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1), attn_mask=mask
        )
        return cast(Tensor, self.o_proj(out.transpose(1, 2).reshape(batch, queries, -1)))


class MLP(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)

    def forward(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, rope, mask)
        return cast(Tensor, x + self.mlp(self.post_attention_layernorm(x)))


class Drafter(nn.Module):
    """The network; the names of its tensors are those of the checkpoint. Embedding and head are the target's."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.captured_layers) * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)

    def forward(
        self, states: Tensor, queries: Tensor, context_positions: Tensor, query_positions: Tensor, mask: Tensor
    ) -> Tensor:
        """Hidden states [B, Q, H] that the target's head turns into logits.

        ``states`` [B, S, captured x H], ``queries`` [B, Q, H] embeddings, positions [B, S] and [B, Q], and ``mask``
        [B, 1, Q, S+Q], True where a query may look.
        """
        context = self.hidden_norm(self.fc(states))
        rope = rotations(torch.cat((context_positions, query_positions), dim=1), self.shape)
        hidden = queries
        for layer in self.layers:
            hidden = layer(hidden, context, rope, mask)
        return cast(Tensor, self.norm(hidden))


def rotations(positions: Tensor, shape: DrafterShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, 1, T, head_dim] of the rotary embedding in halves (NeoX layout)."""
    steps = torch.arange(0, shape.head_dim, 2, device=positions.device, dtype=torch.float32) / shape.head_dim
    angles = positions[..., None].float() * shape.rope_theta**-steps
    both = torch.cat((angles, angles), dim=-1)[:, None]
    return both.cos(), both.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def save_drafter(drafter: Drafter, folder: Path, *, float8: bool = False) -> None:
    """Write ``drafter`` to ``folder`` in BF16, or its layers in FP8. An older one may be there; each file is whole or
    the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in drafter.state_dict().items()
    }
    config = drafter.shape.config()
    if float8:
        tensors, config = to_float8(tensors), {**config, "quantization_config": CONFIG}
    contents = {
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        "config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
    for name, content in contents.items():
        write_whole(folder / name, content)


def load_drafter(folder: Path) -> Drafter:
    """The drafter in ``folder``. InputError when its tensors are missing, superfluous or of another shape."""
    drafter = Drafter(DrafterShape.read(folder))
    try:
        tensors = load_file(folder / "model.safetensors")
        drafter.load_state_dict(from_float8(drafter, tensors) if is_float8(tensors) else tensors)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder / 'model.safetensors'} cannot be read: {error}.") from error
    except (RuntimeError, KeyError) as error:
        raise InputError(f"The tensors in {folder} are not those that its config.json describes: {error}") from error
    return drafter


def refuse_float8(drafter: Drafter, folder: Path) -> None:
    """InputError when ``drafter``, from ``folder``, is one in FP8: its weights are rounded ones."""
    if any(isinstance(module, Float8Linear) for module in drafter.modules()):
        raise InputError(f"{folder} is a drafter in FP8.", fix="Give the one in BF16 that it was converted from.")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file as optistack does. InputError when the disk is full or not writable."""
    try:
        files.write_whole(path, content, mode=0o644)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}.",
            fix="Make room or give another folder; then resume.",
        ) from error
