"""Settings of the engine as a whole."""

from __future__ import annotations

from optistack.verify.receipt import Observed
from optistack_adapters.vllm.observe.evidence import Evidence


def observe_serving(evidence: Evidence) -> dict[str, Observed | None]:
    return {
        "engine.version": _version(evidence),
        "serving.context_tokens": _context(evidence),
        "serving.max_running_requests": _running(evidence),
        "serving.chunked_prefill_tokens": evidence.from_config("scheduler_config", "max_num_scheduled_tokens")
        or evidence.from_config("scheduler_config", "max_num_batched_tokens"),
        "serving.schedule_policy": evidence.from_config("scheduler_config", "policy"),
        "serving.prefix_caching": evidence.from_label("enable_prefix_caching"),
        "serving.attention_backend": _attention(evidence),
        "serving.prefill_attention_backend": _prefill(evidence),
        "serving.cuda_graphs": _graphs(evidence),
        "serving.metrics": _metrics(evidence),
        "serving.cache_report": _cache_report(evidence),
    }


def _version(evidence: Evidence) -> Observed | None:
    return Observed(value=evidence.version, proof="/version") if evidence.version else None


def _context(evidence: Evidence) -> Observed | None:
    tokens = evidence.models.get("max_model_len")
    return Observed(value=tokens, proof="/v1/models data[0].max_model_len") if isinstance(tokens, int) else None


def _running(evidence: Evidence) -> Observed | None:
    """Over all attention groups. With a block drafter vLLM 0.33 runs ``max_num_active_seqs`` of those admitted."""
    active = evidence.from_config("scheduler_config", "max_num_active_seqs")
    seen = active or evidence.from_config("scheduler_config", "max_num_seqs")
    groups = evidence.setting("parallel_config", "data_parallel_size")
    if seen is None or not isinstance(seen.value, int) or not isinstance(groups, int) or groups < 2:
        return seen
    return Observed(
        value=seen.value * groups, proof=f"{seen.proof}, times parallel_config.data_parallel_size = {groups}"
    )


def _attention(evidence: Evidence) -> Observed | None:
    if evidence.log is None:
        return Observed(value=None, proof="only the engine's log says which attention kernels were chosen")
    chosen = evidence.log.attention_backends()
    return Observed(value=chosen[0], proof=f"log: Using {chosen[0]} ... backend") if chosen else None


def _prefill(evidence: Evidence) -> Observed | None:
    word = evidence.log.mla_prefill_backend() if evidence.log else None
    return Observed(value=word, proof=f"log: Using {word} MLA prefill backend") if word else None


def _graphs(evidence: Evidence) -> Observed | None:
    eager = evidence.setting("model_config", "enforce_eager")
    if isinstance(eager, bool):
        return Observed(value=not eager, proof=f"/server_info model_config.enforce_eager = {eager}")
    logged = evidence.from_log("enforce_eager")
    return Observed(value=logged == "False", proof=f"log: enforce_eager={logged}") if logged else None


def _metrics(evidence: Evidence) -> Observed:
    there = any(sample.name.startswith("vllm:") for sample in evidence.metrics.samples)
    return Observed(value=there, proof=f"/metrics has {'the' if there else 'no'} vllm:* families")


def _cache_report(evidence: Evidence) -> Observed | None:
    told = evidence.log.arguments() if evidence.log else None
    if told is None:
        return None
    on = told.get("enable_prompt_tokens_details") is True
    said = "has" if on else "lacks"
    return Observed(value=on, proof=f"log: non-default args {said} enable_prompt_tokens_details")
