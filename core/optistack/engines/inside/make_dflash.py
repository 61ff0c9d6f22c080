"""The weights of an untrained DFlash drafter, for the ``config.json`` that lies in the folder they go to.

Tensor names and shapes are those that vLLM's ``qwen3_dflash.py`` and SGLang's DFlash draft model load: a Qwen3 decoder
of ``num_hidden_layers``, ``fc`` from the target's captured hidden states, side by side, to one, and the norm after it.
Embeddings and output head are the target's, so the drafter has none.
"""

import importlib
import json
from pathlib import Path
from typing import Any


def run(out: str, seed: int) -> int:
    """Write ``model.safetensors`` and return its number of parameters."""
    torch = importlib.import_module("torch")
    config = json.loads(Path(out, "config.json").read_text(encoding="utf-8"))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in _shapes(config):
        values = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator)
        scale = 1.0 if len(shape) == 1 else config["initializer_range"]
        tensors[name] = (values * scale).to(torch.bfloat16)
    save = importlib.import_module("safetensors.torch").save_file
    save(tensors, str(Path(out, "model.safetensors")), metadata={"format": "pt"})
    return sum(tensor.numel() for tensor in tensors.values())


def _shapes(config: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    hidden, head, wide = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    captured = len(config["dflash_config"]["target_layer_ids"])
    shapes: list[tuple[str, tuple[int, ...]]] = [("fc.weight", (hidden, captured * hidden))]
    shapes += [("hidden_norm.weight", (hidden,)), ("norm.weight", (hidden,))]
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (
            ("input_layernorm", (hidden,)),
            ("self_attn.q_proj", (queries, hidden)),
            ("self_attn.k_proj", (keys, hidden)),
            ("self_attn.v_proj", (keys, hidden)),
            ("self_attn.o_proj", (hidden, queries)),
            ("self_attn.q_norm", (head,)),
            ("self_attn.k_norm", (head,)),
            ("post_attention_layernorm", (hidden,)),
            ("mlp.gate_proj", (wide, hidden)),
            ("mlp.up_proj", (wide, hidden)),
            ("mlp.down_proj", (hidden, wide)),
        ):
            shapes.append((f"layers.{layer}.{name}.weight", shape))
    return shapes
