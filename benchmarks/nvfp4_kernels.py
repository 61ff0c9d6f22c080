"""The NVFP4 kernels against a copy of memory and against other packages' quantizers, in one run on one GPU.

    python benchmarks/nvfp4_kernels.py [--rows 16384 --cols 7168 --repeat-ms 200 --tune --json FILE]

Bytes are those that must be read and written: for BF16 to NVFP4 2 + 1/2 + 1/16 a value. Every result of ours is
compared with the codec's, byte for byte, before it is timed; a case that fails is a row that says so, and the file is
written after each. The BF16 kernel's flag, which it sets where it has to give up, is cleared once a case, as a copy's
target is allocated once. ``--tune`` times that kernel in all its divisions of the work as well. Without a GPU it is a
dry run of a small matrix in Triton's interpreter (TRITON_INTERPRET=1), whose times mean nothing and are not printed.
Needs torch, Triton, and the packages optistack and optistack-quant-nvfp4; peers are those that can be imported.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.testing

from optistack_quant_nvfp4 import codec, triton_kernels
from optistack_quant_nvfp4.triton_kernels.launch import Shape, start, start_fp8, start_int4

BLOCK = 16
PACKED_BYTES = 0.5 + 1 / BLOCK
METHODS: tuple[codec.Method, ...] = ("amax", "mse", "four-over-six")


def seconds(work: Callable[[], Any], repeat_ms: int) -> float:
    """The median by the GPU's own clock, the L2 cache emptied before each run, which gives the host the time to queue
    the next: what is measured has no gaps in it."""
    milliseconds = triton.testing.do_bench(work, warmup=50, rep=repeat_ms, return_mode="median")
    return float(milliseconds) / 1000


def error(weight: torch.Tensor, back: torch.Tensor) -> float:
    """By norm, in float64, relative to the weight's."""
    exact = weight.to(torch.float64)
    return float((exact - back.to(torch.float64)).norm() / exact.norm())


def same(ours: codec.Packed, reference: codec.Packed) -> bool:
    scales = torch.equal(ours.block_scales.view(torch.uint8), reference.block_scales.view(torch.uint8))
    return scales and torch.equal(ours.values, reference.values)


Case = dict[str, Any]
"""What is timed: ``work``, the ``bytes`` a value that it must move, and whether its result is the ``same`` as the
reference's, and its ``error``."""


def bf16_case(weight: torch.Tensor, method: codec.Method) -> Case:
    scale = codec.global_scale_of(weight, method)
    reference = codec.quantize(weight, scale, method)
    flag = torch.zeros((), dtype=torch.int32, device=weight.device)
    return {
        "work": lambda: start(weight, scale, method, flag=flag),
        "bytes": 2 + PACKED_BYTES,
        "same": same(triton_kernels.quantize(weight, scale, method), reference),
        "error": error(weight, codec.dequantize(reference)),
    }


def shape_case(weight: torch.Tensor, shape: Shape) -> Case:
    scale = codec.global_scale_of(weight)
    packed, flag = start(weight, scale, shape=shape)
    return {
        "work": lambda: start(weight, scale, shape=shape, flag=flag),
        "bytes": 2 + PACKED_BYTES,
        "same": not int(flag) and same(packed, triton_kernels.quantize(weight, scale)),
    }


def dequantize_case(weight: torch.Tensor) -> Case:
    packed = codec.quantize(weight, codec.global_scale_of(weight))
    back = triton_kernels.dequantize(packed, torch.bfloat16)
    return {
        "work": lambda: triton_kernels.dequantize(packed, torch.bfloat16),
        "bytes": 2 + PACKED_BYTES,
        "same": torch.equal(back, codec.dequantize(packed, torch.bfloat16)),
        "error": error(weight, back),
    }


def fp8_case(weight: torch.Tensor) -> Case:
    rows, cols = weight.shape
    blocks = torch.rand((-(-rows // 128), -(-cols // 128)), device=weight.device) * 0.01 + 0.01
    fp8 = (weight.float() / 0.02).to(torch.float8_e4m3fn)
    plain = codec.fp8_to_float(fp8, blocks, (128, 128))
    scale = codec.global_scale_of(plain)
    ours = triton_kernels.quantize_fp8(fp8, blocks, scale, block=(128, 128))
    return {
        "work": lambda: start_fp8(fp8, blocks, scale, block=(128, 128)),
        "bytes": 1 + PACKED_BYTES,
        "same": same(ours, codec.quantize(plain, scale)),
        "error": error(plain, codec.dequantize(ours)),
    }


def int4_case(weight: torch.Tensor) -> Case:
    rows, cols = weight.shape
    words = torch.randint(-(2**31), 2**31, (rows, cols // 8), dtype=torch.int64, device=weight.device).to(torch.int32)
    groups = (torch.rand((rows, cols // 32), device=weight.device) * 0.01 + 0.001).to(torch.bfloat16)
    plain = codec.int4_to_float(words, groups)
    scale = codec.global_scale_of(plain)
    ours = triton_kernels.quantize_int4(words, groups, scale)
    return {
        "work": lambda: start_int4(words, groups, scale),
        "bytes": 0.5 + 2 / 32 + PACKED_BYTES,
        "same": same(ours, codec.quantize(plain, scale)),
        "error": error(plain, codec.dequantize(ours)),
    }


def our_cases(tune: bool) -> dict[str, Callable[[torch.Tensor], Case]]:
    cases: dict[str, Callable[[torch.Tensor], Case]] = {}
    for method in METHODS:
        cases[f"quantize BF16, {method}"] = functools.partial(bf16_case, method=method)
    cases["dequantize to BF16"] = dequantize_case
    cases["quantize FP8 in 128x128 blocks"] = fp8_case
    cases["quantize INT4 in groups of 32"] = int4_case
    for warps, steps in itertools.product((1, 2, 4, 8), (1, 2, 4) if tune else ()):
        name = f"quantize BF16, amax, {warps} warps, {steps} steps"
        cases[name] = functools.partial(shape_case, shape=Shape(warps, steps))
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


def peer_case(name: str, weight: torch.Tensor) -> Case:
    return {"work": PEERS[name](weight), "bytes": 2 + PACKED_BYTES, "version": importlib.metadata.version(name)}


def row_of(name: str, make: Callable[[], Case], timed: Callable[[Callable[[], Any]], float | None]) -> dict[str, Any]:
    """A case's figures, or why there are none: whatever it raises is a result."""
    try:
        case = make()
        case["work"]()
        seconds_taken = timed(case.pop("work"))
        return {"name": name, **case, "seconds": seconds_taken}
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return {"name": name, "not_run": reason[:300]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--cols", type=int)
    parser.add_argument("--repeat-ms", type=int, default=200, help="how long each case is repeated")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    gpu = torch.cuda.is_available()
    rows, cols = given.rows or (16384 if gpu else 100), given.cols or (7168 if gpu else 288)
    torch.manual_seed(0)
    weight = (torch.randn(rows, cols) * 0.02).to(torch.bfloat16).to("cuda" if gpu else "cpu")

    def timed(work: Callable[[], Any]) -> float | None:
        return seconds(work, given.repeat_ms) if gpu else None

    target = torch.empty_like(weight)
    copy_s = timed(lambda: target.copy_(weight))
    copy_rate = 4 * weight.numel() / copy_s / 1e9 if copy_s else None
    device = torch.cuda.get_device_name() if gpu else "CPU, Triton's interpreter: a dry run"
    report = {"device": device, "torch": torch.__version__, "triton": triton.__version__, "shape": [rows, cols]}
    print(f"{device}, torch {torch.__version__}, Triton {triton.__version__}, {rows}x{cols}")
    if copy_rate:
        print(f"copy: {copy_rate:,.0f} GB/s read and written", flush=True)
    ours: list[dict[str, Any]] = []
    peers: list[dict[str, Any]] = []
    cases = [(ours, name, make) for name, make in our_cases(given.tune).items()]
    for rows_of, name, make in [*cases, *((peers, name, functools.partial(peer_case, name)) for name in PEERS)]:
        row = row_of(name, functools.partial(make, weight), timed)
        if row.get("seconds"):
            row["gb_s"] = row["bytes"] * weight.numel() / row["seconds"] / 1e9
            row["of_copy"] = row["gb_s"] / (copy_rate or 1)
        rows_of.append(row)
        print(_line(row), flush=True)
        if given.json:
            written = {**report, "copy_gb_s": copy_rate, "ours": ours, "peers": peers}
            given.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0 if all(row.get("same") for row in ours) else 1


def _line(row: dict[str, Any]) -> str:
    if "not_run" in row:
        return f"{row['name']}: not run ({row['not_run']})"
    words = [f"{row['name']}:"]
    if row.get("gb_s"):
        words.append(f"{row['seconds'] * 1e6:,.0f} us, {row['gb_s']:,.0f} GB/s, {row['of_copy']:.0%} of the copy,")
    if "same" in row:
        words.append(f"{'the same bytes as' if row['same'] else 'NOT'} the reference")
    if "error" in row:
        words.append(f"error {row['error']:.3%}")
    return " ".join(words if len(words) > 1 else [*words, "ran, not timed"])


if __name__ == "__main__":
    sys.exit(main())
