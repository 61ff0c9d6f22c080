"""The target as the drafter's teacher: its captured hidden states, its last one, its embedding and its head."""

from __future__ import annotations

import json
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from optistack.errors import InputError
from optistack_dflash.drafter.provenance import fingerprint, template_hash
from optistack_dflash.drafter.quiet import without_bars
from optistack_dflash.drafter.shape import DrafterShape


@dataclass
class Target:
    """A frozen target in BF16. ``embedding`` and ``head`` [vocab, hidden] are shared with the drafter."""

    checkpoint: Path
    revision: str
    template: str
    config: dict[str, Any]
    model: Any
    embedding: Tensor
    head: Tensor

    @classmethod
    def load(cls, checkpoint: Path, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Target:
        """The checkpoint in the folder ``checkpoint``. InputError when it is not one or its layers cannot be found.

        Attention in this process is done without cuDNN from then on.
        """
        from transformers import AutoModelForCausalLM

        try:
            config = json.loads((checkpoint / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{checkpoint} is no checkpoint: {error}.", fix="Give the target's folder.") from error
        # cuDNN's attention, which torch prefers on Hopper and Blackwell, is planned anew for each shape of a batch, and
        # planning takes tenths of a second. Recorded answers make hundreds of shapes; other kernels need no plan.
        torch.backends.cuda.enable_cudnn_sdp(False)
        with without_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, local_files_only=True)
        model.requires_grad_(False).eval().to(device)
        if not hasattr(model.base_model, "layers"):
            raise InputError(
                f"The layers of {type(model).__name__} are not where they are known to be (base_model.layers).",
                fix="Train for a text model that transformers implements as a plain decoder.",
            )
        return cls(
            checkpoint=checkpoint,
            revision=fingerprint(checkpoint),
            template=template_hash(checkpoint),
            config=config,
            model=model,
            embedding=model.get_input_embeddings().weight,
            head=model.get_output_embeddings().weight,
        )

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def check(self, shape: DrafterShape) -> None:
        """InputError when a drafter of this ``shape`` cannot draft for this target."""
        vocab, hidden = self.embedding.shape
        layers = len(self.model.base_model.layers)
        if (shape.vocab, shape.hidden) != (vocab, hidden):
            raise InputError(
                f"The drafter has a vocabulary of {shape.vocab} and hidden size {shape.hidden}; {self.name} has "
                f"{vocab} and {hidden}, and lends the drafter its embedding and head.",
                fix="Use a drafter that was made for this target.",
            )
        if shape.target_layers != layers:
            raise InputError(
                f"The drafter was made for a target of {shape.target_layers} layers, {self.name} has {layers}.",
                fix="Use a drafter that was made for this target.",
            )

    @torch.no_grad()
    def states(self, tokens: Tensor, captured_layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """For ``tokens`` [B, S], padded on the right: the outputs of ``captured_layers`` side by side
        [B, S, captured x H], and the last hidden state [B, S, H], from which :attr:`head` makes logits.

        Layer i's output is what transformers calls ``hidden_states[i + 1]`` and vLLM's auxiliary layer i + 1.
        """
        kept: dict[int, Tensor] = {}

        def keep(layer: int) -> Any:
            def hook(_module: Any, _inputs: Any, output: Any) -> None:
                kept[layer] = output[0] if isinstance(output, tuple) else output

            return hook

        hooks = [self.model.base_model.layers[layer].register_forward_hook(keep(layer)) for layer in captured_layers]
        try:
            cache = {self._cache_word: _keeping_nothing(self.model.config)}
            last = self.model.base_model(input_ids=tokens, **cache).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([kept[layer] for layer in captured_layers], dim=-1), last

    @property
    def _cache_word(self) -> str:
        """transformers 5.24 calls ``past_key_values`` ``cache``, and 5.40 takes the old word no more."""
        return "cache" if "cache" in signature(self.model.base_model.forward).parameters else "past_key_values"

    def unused_token(self) -> int:
        """A token for the masked places: the last special one that no text or template needs, else the last of all."""
        tokenizer = self.checkpoint / "tokenizer.json"
        try:
            added = json.loads(tokenizer.read_text()).get("added_tokens") or []
        except (OSError, ValueError):
            added = []
        special = [one["id"] for one in added if one.get("special")]
        return int(max(special)) if special else len(self.embedding) - 1

    def embed(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.embedding)

    @torch.no_grad()
    def greedy(self, prompt: list[int], max_tokens: int, stop: set[int]) -> list[int]:
        """The greedy answer to ``prompt``, a stop token included."""
        from transformers import DynamicCache

        tokens = torch.tensor([prompt], device=self.device)
        answer: list[int] = []
        cache = {self._cache_word: DynamicCache(config=self.model.config)}
        while len(answer) < max_tokens and not (answer and answer[-1] in stop):
            out = self.model(input_ids=tokens, use_cache=True, logits_to_keep=1, **cache)
            answer.append(int(out.logits[0, -1].argmax()))
            tokens = torch.tensor([[answer[-1]]], device=self.device)
        return answer


def _keeping_nothing(config: Any) -> Any:
    """An empty cache, which stays empty. Without one transformers looks for sequences packed into a row, whose answer
    it reads from the device: each forward pass would begin by waiting for all that was before."""
    from transformers import DynamicCache

    class KeepingNothing(DynamicCache):
        def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            return key_states, value_states

    return KeepingNothing(config=config)
