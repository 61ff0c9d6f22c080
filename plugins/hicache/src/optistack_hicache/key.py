"""The name of a storage folder: equal exactly when the bytes in it mean the same."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from optistack.context import PlanContext
from optistack.errors import InputError


def storage_key(ctx: PlanContext, layout: str | None) -> str:
    """A readable name (model, KV dtype, page, layout, parallelism, engine) and 12 digits over everything below.

    ``optistack hicache ls`` reads the name (storage/names.py); ``auto`` is a page that nobody chose, ``own`` a layout
    that the engine alone decides.

    SGLang's file names carry the model's name and the rank, neither KV dtype, layout nor page size
    (sglang 0.5.23 mem_cache/hicache_storage.py:762), and no engine's carry what the checkpoint holds.
    """
    kv, speculation, parallel = ctx.so_far.kv, ctx.so_far.speculation, ctx.parallel
    dtype = kv.dtype.value or ctx.model.dtype
    parts = {
        "model": ctx.model.fingerprint,
        "quantization": ctx.so_far.quantization.engine_quantization.value,
        "kv_dtype": dtype,
        "kv_scales": [kv.scales.value, _content(kv.scales_file.value)],
        "page_size_tokens": kv.page_size_tokens.value,
        "layout": layout,
        # vLLM lays KV out as its attention kernels want it, and its own folder names do not say how.
        "attention_backend": ctx.so_far.serving.attention_backend.value,
        "tag": ctx.options.storage_tag,
        "tensor": parallel.tensor,
        "attention_data": parallel.attention_data,
        "draft": [speculation.method.value, _draft_identity(ctx), kv.draft_dtype.value],
        "engine": [ctx.engine.backend, ctx.engine.version],
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    name = re.sub(r"[^a-z0-9.]+", "-", ctx.model.source.rstrip("/").rpartition("/")[2].lower()).strip("-.")
    page = kv.page_size_tokens.value or "auto"
    return (
        f"{name or 'model'}-{dtype}-p{page}-{layout or 'own'}-tp{parallel.tensor}-"
        f"{ctx.engine.backend}{ctx.engine.version}-{digest}"
    )


def _content(file: str | None) -> str | None:
    """A hash of what ``file`` holds where it is on this machine, else its name."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file is not None else None
    except OSError:
        return file


def _draft_identity(ctx: PlanContext) -> str | None:
    """The draft's fingerprint where its files are on this machine, else its name."""
    draft = ctx.so_far.speculation.draft_checkpoint.value
    if draft is None:
        return None
    try:
        return ctx.load_model(draft, None).fingerprint
    except InputError:
        return draft
