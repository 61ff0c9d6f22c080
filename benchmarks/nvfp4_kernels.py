"""The NVFP4 kernels against a copy of memory and against other packages' quantizers, in one run on one GPU.

    python benchmarks/nvfp4_kernels.py [--rows 16384 --cols 7168 --repeat 50 --json FILE]

Bytes are those that must be read and written: for BF16 to NVFP4 2 + 1/2 + 1/16 a value. Every result of ours is
compared with the codec's, byte for byte, before it is timed. Without a GPU it is a dry run of a small matrix in
Triton's interpreter (TRITON_INTERPRET=1), whose times mean nothing and are not printed. Needs torch, Triton, and the
packages optistack and optistack-quant-nvfp4; peers are those that can be imported.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from optistack_quant_nvfp4 import codec, triton_kernels
from optistack_quant_nvfp4.triton_kernels.launch import start

BLOCK = 16
PACKED_BYTES = 0.5 + 1 / BLOCK
METHODS: tuple[codec.Method, ...] = ("amax", "mse", "four-over-six")


def seconds(work: Callable[[], Any], repeat: int) -> float:
    """The median of ``repeat`` runs, by the GPU's own clock. The matrices are several times its L2 cache."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeat):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        work()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1000)
    return statistics.median(times)


def error(weight: torch.Tensor, back: torch.Tensor) -> float:
    """By norm, in float64, relative to the weight's."""
    exact = weight.to(torch.float64)
    return float((exact - back.to(torch.float64)).norm() / exact.norm())


def same(ours: codec.Packed, reference: codec.Packed) -> bool:
    scales = torch.equal(ours.block_scales.view(torch.uint8), reference.block_scales.view(torch.uint8))
    return scales and torch.equal(ours.values, reference.values)


def our_cases(weight: torch.Tensor) -> list[dict[str, Any]]:
    """What is timed of ours: name, work, bytes a value, and the result that must equal the reference."""
    cases: list[dict[str, Any]] = []
    for method in METHODS:
        scale = codec.global_scale_of(weight, method)
        reference = codec.quantize(weight, scale, method)
        cases.append(
            {
                "name": f"quantize BF16, {method}",
                "work": lambda scale=scale, method=method: start(weight, scale, method),
                "bytes": 2 + PACKED_BYTES,
                "same": same(triton_kernels.quantize(weight, scale, method), reference),
                "error": error(weight, codec.dequantize(reference)),
            }
        )
    scale = codec.global_scale_of(weight)
    packed = codec.quantize(weight, scale)
    back = triton_kernels.dequantize(packed, torch.bfloat16)
    cases.append(
        {
            "name": "dequantize to BF16",
            "work": lambda: triton_kernels.dequantize(packed, torch.bfloat16),
            "bytes": 2 + PACKED_BYTES,
            "same": torch.equal(back, codec.dequantize(packed, torch.bfloat16)),
            "error": error(weight, back),
        }
    )
    rows, cols = weight.shape
    blocks = torch.rand((-(-rows // 128), -(-cols // 128)), device=weight.device) * 0.01 + 0.01
    fp8 = (weight.float() / 0.02).to(torch.float8_e4m3fn)
    plain = codec.fp8_to_float(fp8, blocks, (128, 128))
    scale8 = codec.global_scale_of(plain)
    ours = triton_kernels.quantize_fp8(fp8, blocks, scale8, block=(128, 128))
    cases.append(
        {
            "name": "quantize FP8 in 128x128 blocks",
            "work": lambda: triton_kernels.quantize_fp8(fp8, blocks, scale8, block=(128, 128)),
            "bytes": 1 + PACKED_BYTES,
            "same": same(ours, codec.quantize(plain, scale8)),
            "error": error(plain, codec.dequantize(ours)),
        }
    )
    words = torch.randint(-(2**31), 2**31, (rows, cols // 8), dtype=torch.int64, device=weight.device).to(torch.int32)
    groups = (torch.rand((rows, cols // 32), device=weight.device) * 0.01 + 0.001).to(torch.bfloat16)
    plain4 = codec.int4_to_float(words, groups)
    scale4 = codec.global_scale_of(plain4)
    ours4 = triton_kernels.quantize_int4(words, groups, scale4)
    cases.append(
        {
            "name": "quantize INT4 in groups of 32",
            "work": lambda: triton_kernels.quantize_int4(words, groups, scale4),
            "bytes": 0.5 + 2 / 32 + PACKED_BYTES,
            "same": same(ours4, codec.quantize(plain4, scale4)),
            "error": error(plain4, codec.dequantize(ours4)),
        }
    )
    return cases


def torchao_peer(weight: torch.Tensor) -> Callable[[], Any]:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    scale = per_tensor_amax_to_scale(weight.abs().max())
    return lambda: NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=scale)


def compressed_tensors_peer(weight: torch.Tensor) -> Callable[[], Any]:
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.quant_scheme import NVFP4A16
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = QuantizationScheme(targets=["Linear"], **NVFP4A16)
    divisor = generate_gparam(weight.float().min(), weight.float().max())

    def work() -> Any:
        blocks = weight.unflatten(1, (-1, BLOCK))
        scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights, divisor)
        state = {"weight": weight, "weight_scale": scale, "weight_global_scale": divisor}
        return NVFP4PackedCompressor.compress(state, scheme)

    return work


def flashinfer_peer(weight: torch.Tensor) -> Callable[[], Any]:
    from flashinfer import fp4_quantize

    divisor = (1 / codec.global_scale_of(weight)).reshape(1)
    return lambda: fp4_quantize(weight, divisor, is_sf_swizzled_layout=False)


def modelopt_peer(weight: torch.Tensor) -> Callable[[], Any]:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    return lambda: NVFP4QTensor.quantize(weight, BLOCK)


PEERS: dict[str, Callable[[torch.Tensor], Callable[[], Any]]] = {
    "torchao": torchao_peer,
    "compressed-tensors": compressed_tensors_peer,
    "flashinfer-python": flashinfer_peer,
    "nvidia-modelopt": modelopt_peer,
}


def peer_rows(weight: torch.Tensor, timed: Callable[[Callable[[], Any]], float | None]) -> list[dict[str, Any]]:
    """Each peer's time, or why there is none. A peer that fails is a result, whatever it raises."""
    rows: list[dict[str, Any]] = []
    for name, make in PEERS.items():
        try:
            work = make(weight)
            work()
            row = {"name": name, "seconds": timed(work), "bytes": 2 + PACKED_BYTES}
            rows.append({**row, "version": importlib.metadata.version(name)})
        except Exception as problem:
            reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
            rows.append({"name": name, "not_run": reason[:200]})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--cols", type=int)
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    gpu = torch.cuda.is_available()
    rows, cols = given.rows or (16384 if gpu else 100), given.cols or (7168 if gpu else 288)
    torch.manual_seed(0)
    weight = (torch.randn(rows, cols) * 0.02).to(torch.bfloat16).to("cuda" if gpu else "cpu")

    def timed(work: Callable[[], Any]) -> float | None:
        return seconds(work, given.repeat) if gpu else None

    target = torch.empty_like(weight)
    copy_s = timed(lambda: target.copy_(weight))
    copy_rate = 4 * weight.numel() / copy_s / 1e9 if copy_s else None
    results: list[dict[str, Any]] = []
    for case in our_cases(weight):
        row = {key: case[key] for key in ("name", "bytes", "same", "error")}
        results.append({**row, "seconds": timed(case["work"])})
    peers = peer_rows(weight, timed)
    for row in [*results, *peers]:
        if row.get("seconds"):
            row["gb_s"] = row["bytes"] * weight.numel() / row["seconds"] / 1e9
            row["of_copy"] = row["gb_s"] / (copy_rate or 1)
    device = torch.cuda.get_device_name() if gpu else "CPU, Triton's interpreter: a dry run"
    report = {"device": device, "torch": torch.__version__, "shape": [rows, cols], "copy_gb_s": copy_rate}
    print(f"{device}, torch {torch.__version__}, {rows}x{cols}")
    if copy_rate:
        print(f"copy: {copy_rate:,.0f} GB/s read and written")
    for row in [*results, *peers]:
        print(_line(row))
    if given.json:
        given.json.write_text(json.dumps({**report, "ours": results, "peers": peers}, indent=2) + "\n")
    return 0 if all(row["same"] for row in results) else 1


def _line(row: dict[str, Any]) -> str:
    if "not_run" in row:
        return f"{row['name']}: not run ({row['not_run']})"
    words = [f"{row['name']}:"]
    if row.get("gb_s"):
        words.append(f"{row['seconds'] * 1e6:,.0f} us, {row['gb_s']:,.0f} GB/s, {row['of_copy']:.0%} of the copy,")
    if "same" in row:
        words.append(f"{'the same bytes as' if row['same'] else 'NOT'} the reference, error {row['error']:.3%}")
    return " ".join(words if len(words) > 1 else [*words, "ran, not timed"])


if __name__ == "__main__":
    sys.exit(main())
