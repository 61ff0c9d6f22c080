"""What a drafter looks like: its sizes, and the config.json that vLLM, SGLang and the ``dflash`` package read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optistack.errors import InputError


def spread(target_layers: int, count: int) -> tuple[int, ...]:
    """``count`` layers of the target, evenly from its second to its third last: z-lab's choice of what to capture."""
    if count == 1:
        return (target_layers // 2,)
    first, last = min(1, target_layers - 1), max(0, target_layers - 3)
    return tuple(round(first + number * (last - first) / (count - 1)) for number in range(count))


@dataclass(frozen=True)
class DrafterShape:
    """Sizes of a drafter. ``captured_layers`` are the target's layers, from 0, whose outputs it reads.

    A block holds the anchor (the last token that is known) and ``block_size - 1`` mask tokens to be predicted.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    block_size: int
    target_layers: int
    captured_layers: tuple[int, ...]
    mask_token_id: int

    @classmethod
    def for_target(
        cls,
        config: Mapping[str, Any],
        *,
        layers: int,
        captured_layers: tuple[int, ...],
        block_size: int,
        mask_token_id: int,
        intermediate: int | None = None,
    ) -> DrafterShape:
        """A drafter as wide as the target, whose embedding and head it borrows. ``config`` is the target's config.json.

        InputError when a captured layer or the mask token is not one of the target's.
        """
        heads = int(config["num_attention_heads"])
        rope = config.get("rope_parameters") or {}
        shape = cls(
            hidden=int(config["hidden_size"]),
            intermediate=intermediate or int(config["intermediate_size"]),
            layers=layers,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocab=int(config["vocab_size"]),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            max_positions=int(config["max_position_embeddings"]),
            block_size=block_size,
            target_layers=int(config["num_hidden_layers"]),
            captured_layers=captured_layers,
            mask_token_id=mask_token_id,
        )
        shape.check()
        return shape

    @classmethod
    def read(cls, folder: Path) -> DrafterShape:
        """The shape of the drafter in ``folder``, as :meth:`config` wrote it or as z-lab writes it."""
        file = folder / "config.json"
        try:
            config = json.loads(file.read_text())
            nested = config["dflash_config"]
            rope = config.get("rope_parameters") or {}
            shape = cls(
                hidden=config["hidden_size"],
                intermediate=config["intermediate_size"],
                layers=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                kv_heads=config["num_key_value_heads"],
                head_dim=config["head_dim"],
                vocab=config["vocab_size"],
                norm_eps=config["rms_norm_eps"],
                rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 1000000.0),
                max_positions=config["max_position_embeddings"],
                block_size=nested.get("block_size") or config["block_size"],
                target_layers=config["num_target_layers"],
                captured_layers=tuple(nested["target_layer_ids"]),
                mask_token_id=nested["mask_token_id"],
            )
        except OSError as error:
            raise InputError(f"{folder} is not a drafter: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file} does not describe a DFlash drafter: {type(error).__name__} {error}.",
                fix="Give a folder that `optistack dflash train` wrote, or a draft in z-lab's format.",
            ) from error
        shape.check()
        return shape

    def check(self) -> None:
        """InputError when the drafter cannot be made: a layer, a mask token or a block out of range."""
        outside = [layer for layer in self.captured_layers if not 0 <= layer < self.target_layers]
        if outside or not self.captured_layers:
            raise InputError(
                f"Layer {outside[0]} cannot be captured: the target has layers 0 to {self.target_layers - 1}."
                if outside
                else "No layer of the target is captured.",
                fix="Name layers of the target, counted from 0.",
            )
        if not 0 <= self.mask_token_id < self.vocab:
            raise InputError(
                f"The mask token {self.mask_token_id} is outside the target's vocabulary of {self.vocab}.",
                fix="Take a token that the target's text never holds, such as an unused special one.",
            )
        if self.block_size < 2:
            raise InputError(f"A block of {self.block_size} drafts nothing.", fix="Take a block of 2 or more.")

    def config(self) -> dict[str, Any]:
        """config.json in z-lab's format (https://github.com/z-lab/dflash), weights in BF16."""
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.norm_eps,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "rope_theta": self.rope_theta,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "layer_types": ["full_attention"] * self.layers,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
            "block_size": self.block_size,
            "num_target_layers": self.target_layers,
            "dflash_config": {
                "target_layer_ids": list(self.captured_layers),
                "mask_token_id": self.mask_token_id,
            },
        }

    def fields(self) -> dict[str, Any]:
        return asdict(self)
