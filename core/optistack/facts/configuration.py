"""config.json, read into one shape whatever the family calls its keys."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optistack.errors import InputError
from optistack.facts.model import Attention, MoE

# The last is how speculators (vLLM's format of drafts) nests a draft's decoder.
_NESTED = ("text_config", "llm_config", "language_config", "transformer_layer_config")
_FIX = "Give the folder of a Hugging Face checkpoint, or its config.json."
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Shape:
    """The numbers that decide how many parameters a model has and how large a KV token is."""

    architecture: str
    model_type: str
    layers: int
    sparse_layers: tuple[bool, ...]
    hidden: int
    intermediate: int
    vocab: int
    max_context_tokens: int
    dtype: str
    attention: Attention
    moe: MoE | None
    tied_embeddings: bool
    gated_mlp: bool
    qkv_bias: bool
    out_bias: bool
    qk_norm: bool
    extra_layers: int
    vision: dict[str, Any] | None
    captured_layers: int
    target_hidden: int


class _Reader:
    """The text part of a config, read with checks. ``file`` is for messages."""

    def __init__(self, config: dict[str, Any], file: Path) -> None:
        self.outer, self.file = config, file
        nested = next((config[key] for key in _NESTED if isinstance(config.get(key), dict)), None)
        self.text: dict[str, Any] = nested if nested is not None else config

    def get(self, *names: str) -> Any:
        return next((self.text[name] for name in names if self.text.get(name) is not None), None)

    def integer(self, *names: str, default: int | None = None) -> int:
        value = self.get(*names)
        if value is None:
            if default is not None:
                return default
            raise InputError(f"{self.file} has no {names[0]!r}.", fix=_FIX)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{self.file} says {names[0]!r} is {value!r}, which is not a whole number.", fix=_FIX)
        return value

    def size(self, *names: str, default: int | None = None, at_most: int = 2**40) -> int:
        """An ``integer`` that is at least 1 in every model."""
        value = self.integer(*names, default=default)
        if not 1 <= value <= at_most:
            raise InputError(f"{self.file} says {names[0]!r} is {value}, which no model has.", fix=_FIX)
        return value

    def flag(self, *names: str) -> bool:
        return bool(self.get(*names))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from ``file``. InputError, with line and column, when it is missing or not one."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise InputError(f"There is no {file}.", fix=_FIX) from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}.", fix="Check its permissions.") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not JSON but binary data.", fix="Download it again.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"{file} is not JSON ({where}: {error.msg}).", fix="Download it again.") from None
    if not isinstance(value, dict):
        raise InputError(f"{file} holds a {type(value).__name__} and not a JSON object.", fix="Download it again.")
    return value


def read_shape(config: dict[str, Any], file: Path) -> Shape:
    """The shape that ``config`` describes. InputError naming ``file`` and the key when one is missing or absurd."""
    reader = _Reader(config, file)
    names = config.get("architectures") or reader.text.get("architectures") or [""]
    architecture = str(names[0])
    model_type = str(config.get("model_type") or reader.text.get("model_type") or "")
    text_type = str(reader.text.get("model_type") or model_type)
    layers = reader.size("num_hidden_layers", "n_layer", at_most=_MOST_LAYERS)
    hidden = reader.size("hidden_size", "n_embd")
    moe = _moe(reader)
    draft = draft_settings(config)
    is_draft = draft is not None
    vision = config.get("vision_config")
    bias = reader.flag("attention_bias", "qkv_bias", "use_qkv_bias")
    return Shape(
        architecture=architecture,
        model_type=model_type,
        layers=layers,
        sparse_layers=_sparse_layers(reader, layers) if moe else (False,) * layers,
        hidden=hidden,
        intermediate=reader.integer("intermediate_size", "n_inner", default=4 * hidden),
        vocab=reader.integer("vocab_size"),
        max_context_tokens=reader.integer("max_position_embeddings", "n_positions", "max_sequence_length", default=0),
        dtype=str(reader.get("dtype", "torch_dtype") or config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
        attention=_attention(reader, layers, hidden),
        moe=moe,
        tied_embeddings=reader.flag("tie_word_embeddings"),
        gated_mlp=str(reader.get("hidden_act", "activation_function") or "silu") not in ("relu2", "gelu_new", "relu"),
        qkv_bias=bias or text_type in ("qwen2", "qwen2_moe"),
        out_bias=reader.flag("attention_bias"),
        qk_norm=text_type.startswith(("qwen3", "olmo2")) or is_draft or reader.flag("use_qk_norm"),
        extra_layers=reader.integer("num_nextn_predict_layers", default=0),
        vision=vision if isinstance(vision, dict) else None,
        captured_layers=len(draft.get("target_layer_ids") or range(layers)) if draft is not None else 0,
        target_hidden=reader.integer("target_hidden_size", default=hidden) if is_draft else 0,
    )


def draft_settings(config: dict[str, Any]) -> dict[str, Any] | None:
    """A DFlash draft's own settings (``target_layer_ids``, ``mask_token_id``, ``block_size``), None for other models.

    Speculators counts captured layers from 1 where ``dflash_config`` counts from 0; here it is from 0.
    """
    names = config.get("architectures") or [""]
    if str(config.get("speculators_model_type", "")).startswith("dflash"):
        found = {"mask_token_id": config.get("mask_token_id")}
        ids = config.get("aux_hidden_state_layer_ids")
        found["target_layer_ids"] = [number - 1 for number in ids] if isinstance(ids, list) else None
    elif config.get("dflash_config") is not None or str(names[0]).startswith("DFlash"):
        settings = config.get("dflash_config") or {}
        if not isinstance(settings, dict):
            raise InputError(
                f"config.json says dflash_config is {settings!r}, which is not an object.",
                fix="Download the draft again.",
            )
        found = dict(settings)
    else:
        return None
    found.setdefault("block_size", config.get("block_size"))
    return {key: value for key, value in found.items() if value is not None}


def _attention(reader: _Reader, layers: int, hidden: int) -> Attention:
    heads = reader.integer("num_attention_heads", "n_head")
    if heads == 0:
        raise InputError(f"{reader.file} says the model has no attention heads.", fix=_FIX)
    uncounted = _uncounted(reader, layers)
    if reader.get("kv_lora_rank"):
        nope, rope = reader.integer("qk_nope_head_dim"), reader.integer("qk_rope_head_dim")
        return Attention(
            kind="mla",
            heads=heads,
            kv_heads=reader.integer("num_key_value_heads", default=heads),
            head_dim=nope + rope,
            kv_lora_rank=reader.integer("kv_lora_rank"),
            q_lora_rank=reader.integer("q_lora_rank", default=0),
            qk_rope_head_dim=rope,
            qk_nope_head_dim=nope,
            v_head_dim=reader.integer("v_head_dim"),
            uncounted=uncounted,
        )
    kv_heads = reader.integer("num_key_value_heads", default=heads)
    head_dim = reader.size("head_dim", default=hidden // heads)
    kind = "mha" if kv_heads == heads else "gqa"
    return Attention(kind=kind, heads=heads, kv_heads=kv_heads, head_dim=head_dim, uncounted=uncounted)


def _uncounted(reader: _Reader, layers: int) -> tuple[str, ...]:
    kinds = [str(kind) for kind in reader.get("layer_types") or ()]
    notes = []
    recurrent = sum(kind not in ("full_attention", "sliding_attention") for kind in kinds)
    linear = reader.get("linear_attn_config")
    if isinstance(linear, dict):
        recurrent = len(linear.get("kda_layers") or ()) or recurrent
    if recurrent:
        notes.append(f"{recurrent} of {layers} layers are not full attention and hold a state instead of KV")
    windowed = kinds.count("sliding_attention")
    if windowed:
        notes.append(f"{windowed} of {layers} layers keep a window of {reader.get('sliding_window')} tokens only")
    if reader.get("index_topk"):
        notes.append("a sparse-attention indexer holds keys of its own beside the KV")
    return tuple(notes)


def _moe(reader: _Reader) -> MoE | None:
    routed = reader.integer("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", default=0)
    if routed == 0:
        return None
    width = reader.integer("moe_intermediate_size", "intermediate_size")
    shared_width = reader.integer("shared_expert_intermediate_size", default=0)
    shared = reader.integer("n_shared_experts", "num_shared_experts", default=1 if shared_width else 0)
    return MoE(
        routed_experts=routed,
        experts_per_token=reader.integer("num_experts_per_tok", "num_experts_per_token", "moe_topk"),
        shared_experts=shared,
        expert_width=width,
        shared_width=shared_width or shared * width,
    )


def _sparse_layers(reader: _Reader, layers: int) -> tuple[bool, ...]:
    """Which layers have experts. DeepSeek counts from the first dense ones, Qwen names steps and exceptions."""
    first = reader.integer("first_k_dense_replace", default=0)
    frequency = reader.get("moe_layer_freq")
    if isinstance(frequency, list):
        return tuple(bool(flag) for flag in frequency[:layers]) + (False,) * max(0, layers - len(frequency))
    every = reader.integer("moe_layer_freq", default=1) or 1
    step = reader.integer("decoder_sparse_step", default=1) or 1
    dense = set(reader.get("mlp_only_layers") or ())
    return tuple(
        layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in dense
        for layer in range(layers)
    )


def vision_numbers(vision: dict[str, Any]) -> dict[str, int]:
    """Depth, width, MLP width, patch, merge and position grid of a vision tower, 0 where the config has none.

    Kimi K2.5 prefixes the tower's keys with ``vt_``; other families do not.
    """

    def number(*names: str) -> int:
        return next((vision[name] for name in names if isinstance(vision.get(name), int)), 0)

    merge = vision.get("merge_kernel_size") or [1]
    return {
        "layers": number("vt_num_hidden_layers", "num_hidden_layers", "depth"),
        "hidden": number("vt_hidden_size", "hidden_size"),
        "intermediate": number("vt_intermediate_size", "intermediate_size"),
        "patch": number("patch_size"),
        "grid": number("init_pos_emb_height") * number("init_pos_emb_width"),
        "merge": math.prod(merge) if isinstance(merge, list) else int(merge),
    }
