"""A tiny target with random weights, and greedy answers that it gave."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `train`")
transformers = pytest.importorskip("transformers", reason="training needs the extra `train`")

HIDDEN, LAYERS, VOCAB = 32, 4, 64
MASK = 63


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of four layers whose greedy text is not one token over and over."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return folder


@pytest.fixture(scope="session")
def target(checkpoint: Path) -> Any:
    from optistack_dflash.drafter.target import Target

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Target.load(checkpoint, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="session")
def answers(target: Any) -> list[Any]:
    """Six prompts of 4 to 9 tokens with greedy answers of 40."""
    from optistack_dflash.drafter.shards import Recorded

    dice = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, VOCAB - 1, (4 + number,), generator=dice).tolist() for number in range(6)]
    return [Recorded((*one, *target.greedy(one, 40, set())), len(one), "code") for one in prompts]


@pytest.fixture(scope="session")
def shape(target: Any) -> Any:
    from optistack_dflash.drafter.shape import DrafterShape

    return DrafterShape.for_target(target.config, layers=2, captured_layers=(0, 2), block_size=4, mask_token_id=MASK)
