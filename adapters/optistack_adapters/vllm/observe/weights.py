"""Weight formats, the kernels that run them, and the memory that they take."""

from __future__ import annotations

from optistack.facts.node import GIB
from optistack.verify.receipt import Observed
from optistack_adapters.vllm.observe.evidence import Evidence

_KERNELS = {"vllm_cutlass": "cutlass"}
_FORMATS = {"NvFp4": "nvfp4", "Fp8": "fp8", "MxFp4": "mxfp4", "MXFP4": "mxfp4"}
PLAIN = "none"


def observe_weights(evidence: Evidence) -> dict[str, Observed | None]:
    chosen = evidence.log.moe_backend() if evidence.log else None
    found: dict[str, Observed | None] = {
        "quantization.checkpoint_format": _format(evidence),
        "budget.weight_bytes": _memory(evidence),
    }
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


def _memory(evidence: Evidence) -> Observed:
    """Of the rank that takes most. vLLM counts what torch has allocated before and after it loads target and draft, and
    rounds to 0.01 GiB (v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py); its CPU worker counts nothing.

    On an H200, 0.26 said 60.39 GiB of a DeepSeek-V3 shape in BF16 where the plan has 60.32, and 24.54 of the same with
    NVFP4 experts where it has 24.48.
    """
    if evidence.log is None:
        return Observed(value=None, proof="only the engine's log says what loading the weights took")
    said = evidence.log.loaded_gib()
    if not said:
        return Observed(value=None, proof='the log has no line "Model loading took ... GiB"')
    most = max(said, key=float)
    among = f", the most of {len(said)} ranks" if len(said) > 1 else ""
    return Observed(value=round(float(most) * GIB), proof=f"log: Model loading took {most} GiB{among}")
