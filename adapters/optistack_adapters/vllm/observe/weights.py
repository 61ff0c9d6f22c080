"""Weight formats and the kernels that run them."""

from __future__ import annotations

from optistack.verify.receipt import Observed
from optistack_adapters.vllm.observe.evidence import Evidence

_KERNELS = {"vllm_cutlass": "cutlass"}
_FORMATS = {"NvFp4": "nvfp4", "Fp8": "fp8", "MxFp4": "mxfp4", "MXFP4": "mxfp4"}
PLAIN = "none"


def observe_weights(evidence: Evidence) -> dict[str, Observed | None]:
    chosen = evidence.log.moe_backend() if evidence.log else None
    found: dict[str, Observed | None] = {"quantization.checkpoint_format": _format(evidence)}
    if chosen is not None:
        kernels, precision = chosen
        proof = f"log: Using '{kernels}' {precision} MoE backend"
        word = kernels.lower()
        found["quantization.moe_backend"] = Observed(value=_KERNELS.get(word, word), proof=proof)
        if precision in _FORMATS:
            found["quantization.experts"] = Observed(value=_FORMATS[precision], proof=proof)
    return found


def _format(evidence: Evidence) -> Observed | None:
    """``modelopt``, ``compressed-tensors``, ...; vLLM's word also names the variant (``modelopt_fp4``)."""
    if evidence.config is not None:
        word = evidence.setting("model_config", "quantization")
        proof = f"/server_info model_config.quantization = {word!r}"
    elif evidence.log is not None and evidence.log.engine_field("quantization") is not None:
        word = evidence.from_log("quantization")
        proof = f"log: quantization={word}"
    else:
        return None
    text = str(word) if word else PLAIN
    return Observed(value="modelopt" if text.startswith("modelopt") else text, proof=proof)
