"""How fast a synthetic checkpoint is converted to NVFP4, beside a plain copy of its files in the same run.

    python benchmarks/nvfp4_convert.py --gib 2 --source bf16 --folder /tmp/bench

The checkpoint is of one kind of layer, 7168 wide like Kimi K2's experts, in files of 0.25 GiB. Needs the plugin's extra
`convert`. Prints JSON: seconds and GB/s of source of the copy, of reading alone, and of each method; the ratio of the
two; where a thread's time goes; the machine and its load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from optistack_quant_nvfp4.codec import Packed, dequantize, global_scale_of, int4_to_float, quantize
from optistack_quant_nvfp4.commands.convert import planned
from optistack_quant_nvfp4.convert.job import Job
from optistack_quant_nvfp4.convert.measure import Error
from optistack_quant_nvfp4.convert.plan import Method
from optistack_quant_nvfp4.convert.results import other_bytes, recipe_of, write_results
from optistack_quant_nvfp4.convert.run import Runner, default_workers
from optistack_quant_nvfp4.convert.values import magnitude

WIDTH, FILE_BYTES, KIMI_BYTES = 7168, 1 << 28, 595e9
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_attention_heads": 56,
    "num_key_value_heads": 56,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
        }
    },
}


def layer(rows: int, source: str) -> dict[str, torch.Tensor]:
    """The tensors of one layer by the last part of their name."""
    if source == "bf16":
        return {"weight": torch.randn(rows, WIDTH, dtype=torch.float32).mul_(0.02).bfloat16()}
    return {
        "weight_packed": torch.randint(-(2**31), 2**31 - 1, (rows, WIDTH // 8), dtype=torch.int64).to(torch.int32),
        "weight_scale": torch.rand(rows, WIDTH // 32).mul_(0.002).add_(0.001).bfloat16(),
        "weight_shape": torch.tensor([rows, WIDTH]),
    }


def write_source(folder: Path, gib: float, source: str) -> int:
    """Files of one block of MLP each; the bytes of all. Every layer has the rows of the first one in another order:
    drawing 16 GiB anew takes longer than what is measured."""
    folder.mkdir()
    blocks = max(1, round(gib * 2**30 / FILE_BYTES))
    row_bytes = WIDTH * 2 if source == "bf16" else WIDTH // 2 + WIDTH // 16
    rows = FILE_BYTES // (2 * row_bytes) // 128 * 128
    config = {**CONFIG, "num_hidden_layers": blocks, "intermediate_size": rows}
    (folder / "config.json").write_text(
        json.dumps(config | ({"quantization_config": INT4} if source == "int4" else {}))
    )
    first = layer(rows, source)
    for number in range(blocks):
        tensors = {
            f"model.layers.{number}.mlp.{name}.{part}": tensor.clone()
            if part == "weight_shape"
            else tensor.roll(shift, 0)
            for shift, name in ((2 * number, "gate_proj"), (2 * number + 1, "up_proj"))
            for part, tensor in first.items()
        }
        save_file(tensors, folder / f"model-{number:05d}.safetensors")
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def forget(folder: Path) -> None:
    """Ask the system to drop the files from its cache, so that each run reads the disk."""
    for file in folder.glob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def copy(source: Path, target: Path) -> None:
    target.mkdir()
    for file in source.glob("*.safetensors"):
        shutil.copyfile(file, target / file.name)
        descriptor = os.open(target / file.name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def convert(source: Path, target: Path, method: Method, workers: int, device: str) -> None:
    plan = planned(source, ["dense-mlp"], [], "modelopt", method, None, weight_only=True, rest="keep")
    job = Job(plan, target)
    with job.open(other_bytes(plan)):
        rows = Runner(plan, job, torch.device(device), workers, lambda text: None).run()
        write_results(plan, job.checkpoint, recipe_of(plan, ["dense-mlp"], [], "keep", 0.0), rows)
        job.publish()


def timed(action: Any, *words: Any) -> float:
    started = time.monotonic()
    action(*words)
    return time.monotonic() - started


def stages(source: str, method: Method) -> dict[str, float]:
    """Seconds that one thread takes for a million values of each stage, in memory."""
    torch.set_num_threads(1)
    tensors = layer(36, source)
    values = tensors.get("weight")
    took: dict[str, float] = {}
    if values is None:
        words, scale = tensors["weight_packed"], tensors["weight_scale"]
        took["unpack INT4"] = best(lambda: int4_to_float(words, scale))
        values = int4_to_float(words, scale)
    took["largest value"] = best(lambda: magnitude(values))
    whole = global_scale_of(values.abs().amax(), method)
    took["quantize"] = best(lambda: quantize(values, whole, method))
    packed: Packed = quantize(values, whole, method)
    found = dequantize(packed)
    took["dequantize to measure"] = best(lambda: dequantize(packed))
    took["measure"] = best(lambda: Error().add(values, found))
    return {name: round(seconds * 1e6 / values.numel(), 5) for name, seconds in took.items()}


def best(action: Any) -> float:
    return min(timed(action) for _ in range(7))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--gib", type=float, default=2.0)
    options.add_argument("--source", choices=["bf16", "int4"], default="bf16")
    options.add_argument("--method", choices=["amax", "mse", "four-over-six"], action="append")
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--workers", type=int, default=default_workers())
    options.add_argument("--device", default="cpu")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        source = folder / "source"
        size = write_source(source, given.gib, given.source)
        result: dict[str, Any] = {
            "source": given.source,
            "source_bytes": size,
            "workers": given.workers,
            "device": given.device,
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__},
            "load_before": os.getloadavg(),
        }
        forget(source)
        copied_s = timed(copy, source, folder / "copy")
        shutil.rmtree(folder / "copy")
        result["copy"] = {"s": round(copied_s, 2), "gb_s": round(size / copied_s / 1e9, 3)}
        for method in given.method or ["amax"]:
            forget(source)
            took_s = timed(convert, source, folder / "new", method, given.workers, given.device)
            shutil.rmtree(folder / "new")
            result[method] = {
                "s": round(took_s, 2),
                "gb_s": round(size / took_s / 1e9, 4),
                "times_a_copy": round(took_s / copied_s, 1),
                "thread_s_per_million_values": stages(given.source, method),
                "extrapolated_595_gb_h": round(KIMI_BYTES / (size / took_s) / 3600, 1),
            }
        result["load_after"] = os.getloadavg()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
