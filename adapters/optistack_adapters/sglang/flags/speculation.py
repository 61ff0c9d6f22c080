"""Speculative decoding."""

from __future__ import annotations

from optistack.backend import RenderRequest
from optistack_adapters.base import LaunchBuilder
from optistack_adapters.sglang import versions
from optistack_adapters.sglang.capacity import DP_LM_HEAD
from optistack_adapters.sglang.kernels import draft_backend
from optistack_adapters.sglang.words import CHAINED, algorithm, kv_note, kv_word, quantization_word


def add_speculation(build: LaunchBuilder, request: RenderRequest) -> None:
    """The method, the draft, and how many tokens it proposes.

    SGLang's ``--speculative-num-draft-tokens`` counts the tokens verified in a step: the drafts and the last known
    token. For DFLASH that is the block size (arg_groups/speculative_hook.py:370), for a chain of drafts its steps and
    one (:1259), for NGRAM the size of its tree with the root (:1337).
    """
    speculation = request.stack.speculation
    method = speculation.method.value
    if method is None:
        return
    build.carry("--speculative-algorithm", "speculation.method", speculation.method, algorithm)
    build.carry("--speculative-draft-model-path", "speculation.draft_checkpoint", speculation.draft_checkpoint)
    tokens = speculation.num_draft_tokens
    if method in CHAINED and tokens.is_set:
        build.carry("--speculative-num-steps", "speculation.num_draft_tokens", tokens)
        build.flag("--speculative-eagle-topk", 1, source="sglang", why="one chain of drafts")
    note = f"{tokens.value} drafts and the last known token" if tokens.is_set else ""
    build.carry(
        "--speculative-num-draft-tokens", "speculation.num_draft_tokens", tokens, lambda count: count + 1, note=note
    )
    if method == "ngram":
        _ngram(build, request)
        return
    _draft(build, request)
    if method == "dflash":
        _dflash(build, request)


def _draft(build: LaunchBuilder, request: RenderRequest) -> None:
    """Precision and KV of the draft."""
    stack = request.stack
    quantization = stack.speculation.draft_quantization
    if quantization.is_set:
        flag = "--speculative-draft-model-quantization"
        build.carry(flag, "speculation.draft_quantization", quantization, quantization_word)
    elif stack.quantization.engine_quantization.is_set:
        build.flag(
            "--speculative-draft-model-quantization",
            "unquant",
            source="sglang",
            why="a draft inherits --quantization of the target otherwise",
            reference="sglang arg_groups/serving_hook.py:685",
        )
    if versions.has("draft-kv-dtype", request.engine.version):
        dtype = stack.kv.draft_dtype
        build.carry("--speculative-draft-kv-cache-dtype", "kv.draft_dtype", dtype, kv_word, note=kv_note(dtype.value))


def _dflash(build: LaunchBuilder, request: RenderRequest) -> None:
    speculation, serving = request.stack.speculation, request.stack.serving
    if speculation.draft_attention_backend.is_set:
        path = "speculation.draft_attention_backend"
        build.carry("--speculative-draft-attention-backend", path, speculation.draft_attention_backend)
    elif request.node.device == "cuda":
        target = serving.prefill_attention_backend.value or serving.attention_backend.value
        build.flag(
            "--speculative-draft-attention-backend",
            draft_backend(target, request.node),
            source="sglang",
            why=f"a draft does not run on {target}" if target else "SGLang's choice for a draft",
            reference="sglang arg_groups/speculative_hook.py:886",
        )
    build.carry("--speculative-draft-window-size", "speculation.draft_window_tokens", speculation.draft_window_tokens)
    if request.spec.parallel.attention_data > 1:
        build.flag(
            DP_LM_HEAD,
            source="sglang",
            why="DFLASH with data-parallel attention demands it",
            reference="sglang arg_groups/speculative_hook.py:308",
        )


def _ngram(build: LaunchBuilder, request: RenderRequest) -> None:
    """NGRAM's default tree is ten wide, which only flashinfer verifies on pages of more than one token."""
    paged = (request.stack.kv.page_size_tokens.value or 1) > 1
    if paged and request.stack.serving.attention_backend.value != "flashinfer":
        build.flag(
            "--speculative-ngram-max-bfs-breadth",
            1,
            source="sglang",
            why="a wider tree needs pages of one token on these kernels",
            reference="sglang arg_groups/speculative_hook.py:1361",
        )
