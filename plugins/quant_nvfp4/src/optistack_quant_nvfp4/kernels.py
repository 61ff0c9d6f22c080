"""Which kernels run NVFP4, by engine and compute capability.

``sm`` is compute capability without the dot. FP4 tensor cores begin at SM100; the TensorRT-LLM and CuTe DSL kernels are
built for the SM100 family alone (B200: 100, B300: 103), not for SM110 and SM120.
"""

from __future__ import annotations

from optistack.settings import UNSET, Value, suggest
from optistack.versions import at_least
from optistack_quant_nvfp4.checkpoint import COMPRESSED_TENSORS, MODELOPT, Recognised

FP4_SM = 100
DATACENTER_BLACKWELL = (100, 103)

SGLANG_MODELOPT_MOE = (
    "flashinfer_trtllm",
    "flashinfer_trtllm_routed",
    "flashinfer_cutlass",
    "flashinfer_cutedsl",
    "flashinfer_megamoe",
    "marlin",
)
"""MoE runners that SGLang's ModelOpt NVFP4 experts have a branch for (``ModelOptNvFp4FusedMoEMethod.apply``)."""

VLLM_MOE = (
    "cutlass",
    "flashinfer_trtllm",
    "flashinfer_cutlass",
    "flashinfer_cutedsl",
    "flashinfer_b12x",
    "marlin",
    "humming",
    "emulation",
)
"""MoE backends that vLLM's NVFP4 experts take (``map_nvfp4_backend`` in fused_moe/oracle/nvfp4.py)."""

VLLM_MOE_SINCE_0_32 = ("b12x", "flashinfer_moe_ep_cutedsl")


def vllm_moe_words(version: str) -> tuple[str, ...]:
    """The MoE backends of vLLM ``version``."""
    return (*VLLM_MOE, *VLLM_MOE_SINCE_0_32) if at_least(version, "0.32") else VLLM_MOE


def moe_backend(engine: str, sm: int, found: Recognised) -> Value[str]:
    """The kernels of NVFP4 experts; unset where the engine's own choice is the only safe one."""
    if engine == "sglang":
        return _sglang_moe(sm, found)
    if engine == "vllm":
        return _vllm_moe(sm, found)
    return UNSET


def gemm_backend(engine: str, sm: int, found: Recognised) -> Value[str]:
    """The kernels of NVFP4 linear layers other than experts.

    Left to vLLM: its ``--linear-backend`` speaks for the layers of every precision at once.
    """
    reference = "sglang layers/quantization/fp4_utils.py initialize_fp4_gemm_config"
    if engine != "sglang" or (found.weight_only and sm >= FP4_SM):
        return UNSET
    if sm < FP4_SM:
        return suggest("marlin", why=f"SM{sm} has no FP4 tensor cores: weight-only kernels", reference=reference)
    if sm in DATACENTER_BLACKWELL:
        why = "SGLang's own choice on SM100, said aloud so that a release cannot change it unseen"
        return suggest("flashinfer_cutedsl", why=why, reference=reference)
    why = f"the CuTe DSL kernels are not built for SM{sm}"
    return suggest("flashinfer_cutlass", why=why, reference=reference)


def _sglang_moe(sm: int, found: Recognised) -> Value[str]:
    if found.method == COMPRESSED_TENSORS:
        if found.weight_only or sm not in DATACENTER_BLACKWELL:
            return UNSET
        return suggest(
            "flashinfer_trtllm",
            why="SGLang leaves compressed-tensors NVFP4 experts on auto, which runs the slower CUTLASS kernels",
            reference="sglang compressed_tensors_w4a4_nvfp4_moe.py use_flashinfer_trtllm",
        )
    if found.method != MODELOPT:
        return UNSET
    if sm < FP4_SM or found.weight_only:
        return suggest(
            "marlin",
            why=_weight_only_why(sm, found),
            reference="sglang layers/quantization/modelopt_quant.py ModelOptNvFp4FusedMoEMethod",
        )
    if sm in DATACENTER_BLACKWELL:
        return suggest(
            "flashinfer_trtllm",
            why="what SGLang picks for DeepSeek-like models on SM100, said aloud for every architecture",
            reference="sglang arg_groups/overrides.py (moe_runner_backend)",
        )
    return suggest(
        "flashinfer_cutlass",
        why=f"the TensorRT-LLM MoE kernels are not built for SM{sm}",
        reference="sglang arg_groups/overrides.py _moe_runner_backend_quant_constraints",
    )


def _vllm_moe(sm: int, found: Recognised) -> Value[str]:
    reference = "vllm fused_moe/oracle/nvfp4.py select_nvfp4_moe_backend"
    if sm < FP4_SM or found.weight_only:
        return suggest("marlin", why=_weight_only_why(sm, found), reference=reference)
    if sm in DATACENTER_BLACKWELL:
        why = "first in vLLM's order on SM100; asked for by name it fails instead of falling back unseen"
        return suggest("flashinfer_trtllm", why=why, reference=reference)
    return UNSET


def _weight_only_why(sm: int, found: Recognised) -> str:
    if sm < FP4_SM:
        return f"SM{sm} has no FP4 tensor cores: weights are unpacked and multiplied in BF16"
    return "the checkpoint quantizes weights alone (W4A16)"
