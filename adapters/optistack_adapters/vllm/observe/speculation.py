"""Speculation: the method, the draft and the number of drafted tokens."""

from __future__ import annotations

from optistack.verify.receipt import Observed
from optistack_adapters.vllm.observe.evidence import Evidence

DRAFTS = "vllm:spec_decode_num_drafts_total"
TOKENS = "vllm:spec_decode_num_draft_tokens_total"
OFF = "none"


def observe_speculation(evidence: Evidence) -> dict[str, Observed | None]:
    if evidence.metrics.samples and not evidence.metrics.has(DRAFTS):
        proof = f"/metrics has no {DRAFTS}: the server runs without speculation"
        return {
            "speculation.method": Observed(value=OFF, proof=proof),
            "speculation.num_draft_tokens": Observed(value=0, proof=proof),
        }
    return {
        "speculation.method": _from(evidence, "method", "method"),
        "speculation.num_draft_tokens": _num_tokens(evidence),
        "speculation.draft_checkpoint": _from(evidence, "model", "model"),
        "speculation.draft_quantization": _quantization(evidence),
        "speculation.draft_attention_backend": _attention(evidence),
    }


def _from(evidence: Evidence, config_name: str, log_name: str) -> Observed | None:
    """From the resolved configuration, else from the engine process's line in the log, else the reason."""
    seen = evidence.from_config("speculative_config", config_name)
    if seen is not None:
        return seen
    logged = (evidence.log.speculation() if evidence.log else None) or {}
    if log_name in logged and logged[log_name] != "None":
        value: str | int = int(logged[log_name]) if logged[log_name].isdigit() else logged[log_name]
        proof = f"log: speculative_config=SpeculativeConfig({log_name}={logged[log_name]!r})"
        return Observed(value=value, proof=proof)
    if not evidence.metrics.has(DRAFTS):
        return None
    return Observed(
        value=None, proof=f"{DRAFTS} shows that there is speculation; only /server_info or the log say more"
    )


def _num_tokens(evidence: Evidence) -> Observed | None:
    """Counters first, once something was drafted: they show what is done, not what was asked."""
    drafts, tokens = evidence.metrics.total(DRAFTS), evidence.metrics.total(TOKENS)
    if drafts and tokens is not None and tokens % drafts == 0:
        return Observed(value=int(tokens / drafts), proof=f"{TOKENS} {tokens:.0f} / {DRAFTS} {drafts:.0f}")
    return _from(evidence, "num_speculative_tokens", "num_spec_tokens")


def _quantization(evidence: Evidence) -> Observed | None:
    if not isinstance(evidence.setting("speculative_config"), dict):
        return None
    word = evidence.setting("speculative_config", "quantization")
    return Observed(value=word or OFF, proof=f"/server_info speculative_config.quantization = {word!r}")


def _attention(evidence: Evidence) -> Observed | None:
    """The second kernel that was chosen; a draft that runs on the target's kernel adds no line."""
    chosen = evidence.log.attention_backends() if evidence.log else []
    if not chosen or not isinstance(evidence.log.speculation() if evidence.log else None, dict):
        return None
    word = chosen[1] if len(chosen) > 1 else chosen[0]
    where = "second" if len(chosen) > 1 else "only"
    return Observed(value=word, proof=f"log: Using {word} ... backend ({where} kernel chosen)")
