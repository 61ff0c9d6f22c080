"""What a running SGLang says, from its information endpoints, its metrics and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.verify.receipt import Observed
from optistack_adapters.sglang.log import Found, LogFacts, read_log
from optistack_adapters.sglang.server_info import Info, Observations, field, read_server_info
from optistack_adapters.sglang.tier_proofs import read_tiers
from optistack_adapters.sglang.weight_memory import read_weight_memory
from optistack_adapters.sglang.words import kv_dtype

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.metrics import Metrics

NO_LOG = "the log says it, and there is none"

_ALGORITHMS = {"nvfp4": "nvfp4", "fp8": "fp8", "fp8_pb_wo": "fp8", "mxfp4": "mxfp4", "w4a16_nvfp4": "nvfp4"}


def observe(endpoint: Endpoint, log: str | None) -> Observations:
    """Observations by setting path. ``log`` is the text of the engine's log, if we have it."""
    info = endpoint.get_json("/server_info") or {}
    model = endpoint.get_json("/model_info") or {}
    facts = read_log(log or "")
    metrics = _metrics(endpoint)
    seen = read_server_info(info)
    seen.update(_kv(info, facts, seen))
    seen.update(_serving(info, facts, metrics))
    seen.update(_speculation(facts))
    seen.update(_weights(facts, model, has_log=log is not None))
    seen.update(read_weight_memory(info, facts, metrics))
    seen.update(read_tiers(info, facts, metrics))
    return seen


def _metrics(endpoint: Endpoint) -> Metrics:
    from optistack.verify.metrics import Metrics

    try:
        return endpoint.metrics()
    except ValueError:
        return Metrics(())


def _line(found: Found) -> str:
    return f"log: {found.line}"


def _kv(info: Info, facts: LogFacts, seen: Observations) -> Observations:
    """The log tells what was allocated, which is better than what was resolved."""
    better = {}
    for path, found in (("kv.dtype", facts.kv), ("kv.draft_dtype", facts.draft_kv)):
        if found is not None:
            better[path] = Observed(value=kv_dtype(found.value), proof=_line(found))
    drafts = info.get("speculative_draft_model_path") is not None
    if drafts and "kv.draft_dtype" not in {**seen, **better}:
        proof = f"{field('speculative_draft_kv_cache_dtype', 'null')} says nothing; {NO_LOG}"
        better["kv.draft_dtype"] = Observed(value=None, proof=proof)
    dtype = {**seen, **better}.get("kv.dtype")
    if dtype is not None and str(dtype.value).startswith("fp8"):
        better["kv.scales"] = _scales(facts)
        if facts.scales_file is not None:
            better["kv.scales_file"] = Observed(value=facts.scales_file.value, proof=_line(facts.scales_file))
    return better


def _scales(facts: LogFacts) -> Observed:
    """SGLang says which scales it leaves in a checkpoint, and not which it loads: a layer without any silently has 1.0
    (layers/quantization/kv_cache.py, 0.5.17 to 0.5.23). Scales of a checkpoint are read where it is quantized only.
    """
    if facts.scales_file is not None:
        return Observed(value="file", proof=_line(facts.scales_file))
    if facts.unit_scales is not None:
        return Observed(value="unit", proof=_line(facts.unit_scales))
    if facts.quant is not None and facts.quant.value == "none":
        return Observed(value="unit", proof=f"a checkpoint without quantization brings no scales, {_line(facts.quant)}")
    return Observed(
        value=None, proof="log: no line about KV scales, whether the checkpoint's were loaded or it has none"
    )


def _serving(info: Info, facts: LogFacts, metrics: Metrics) -> Observations:
    seen = {}
    families = sorted({sample.name for sample in metrics.samples if sample.name.startswith("sglang:")})
    if families:
        seen["serving.metrics"] = Observed(value=True, proof=f"/metrics has {families[0]} and {len(families) - 1} more")
    elif isinstance(info.get("enable_metrics"), bool):
        seen["serving.metrics"] = Observed(
            value=False, proof=f"/metrics has no sglang: family; {field('enable_metrics', info['enable_metrics'])}"
        )
    if info.get("context_length") is None:
        from_metrics = metrics.find("sglang:context_len")
        if from_metrics and from_metrics[0].value > 0:
            tokens = int(from_metrics[0].value)
            seen["serving.context_tokens"] = Observed(value=tokens, proof=f"/metrics sglang:context_len {tokens}")
        elif facts.context_tokens is not None:
            seen["serving.context_tokens"] = Observed(
                value=int(facts.context_tokens.value), proof=_line(facts.context_tokens)
            )
    return seen


def _speculation(facts: LogFacts) -> Observations:
    seen = {}
    if facts.draft_backend is not None:
        seen["speculation.draft_attention_backend"] = Observed(
            value=facts.draft_backend.value, proof=_line(facts.draft_backend)
        )
    return seen


def _weights(facts: LogFacts, model: Info, *, has_log: bool) -> Observations:
    """The checkpoint as the loader read it. ``/server_info quantization`` may hold the word that was asked for."""
    if facts.quant is None:
        reason = "the log has no line about loaded weights" if has_log else NO_LOG
        reason = f"/server_info quantization may be the word that was asked for; {reason}"
        return {
            "quantization.checkpoint_format": Observed(value=None, proof=reason),
            "quantization.experts": Observed(value=None, proof=reason),
        }
    method = facts.quant.value
    proof = _line(facts.quant)
    seen = {"quantization.checkpoint_format": Observed(value=_format(method), proof=proof)}
    algorithm = facts.quant_algo.value.lower() if facts.quant_algo is not None else None
    where = f"{proof} (/model_info architectures={model.get('architectures')})"
    if algorithm in _ALGORITHMS:
        seen["quantization.experts"] = Observed(value=_ALGORITHMS[algorithm], proof=where)
    else:
        why = f"quant_algo={algorithm} names no single precision" if algorithm else "the line gives no quant_algo"
        seen["quantization.experts"] = Observed(value=None, proof=f"{where}: {why}")
    return seen


def _format(method: str) -> str:
    return "modelopt" if method.startswith("modelopt") else method
