"""A running engine's log probabilities of prompt tokens against a reference made of the same checkpoint, dequantized.

    python logits.py --endpoint URL --checkpoint DIR --out FILE.json [--backend vllm|sglang] [--against-bf16 DIR]

The engine is asked for the log probability of every token of held-out Python source. The reference is transformers with
the checkpoint's NVFP4, FP8 and INT4 layers dequantized by the plugin's codec (weights alone: activations and KV stay as
they are), in BF16 and in float32. With --against-bf16, the checkpoint that DIR was made from stands beside it, so that
an engine's difference can be compared with what quantization did. Of a checkpoint that is not quantized, the figures
are the noise of the engine's arithmetic.

Needs torch, transformers, optistack and the plugin quant-nvfp4. For each pair A, B: |log p_A - log p_B| of the tokens
of the text in nats (mean, p99, max, share within 0.1), the mean of log p_A - log p_B, and Schulman's k3 of KL(B || A),
mean(r - 1 - log r) with r = p_A / p_B, which would be unbiased were the text sampled from B. ``top1`` is the share of
positions where both like the same token best.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from optistack.errors import CheckFailedError, OptistackError
from optistack.verify.endpoint import Endpoint
from optistack_quant_nvfp4.convert.checkpoint import Checkpoint, read_checkpoint
from optistack_quant_nvfp4.convert.layer import OWN_LEAVES, Layer
from optistack_quant_nvfp4.convert.measure import packed_rows
from optistack_quant_nvfp4.convert.tensor_file import Reader
from optistack_quant_nvfp4.convert.values import TORCH_DTYPES, Slab, values

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from quality import stream_rows

KV_SCALES = (".k_scale", ".v_scale")
CLOSE_NAT = 0.1


class Seen(NamedTuple):
    """Of each token but a row's first: its log probability, and the token that was likeliest there. On the CPU."""

    logs: Tensor
    best: Tensor


def dequantized(checkpoint: Checkpoint, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """The checkpoint's tensors by name as a plain one has them: quantized weights as float32, others as stored."""
    owned: set[str] = set()
    with Reader(checkpoint.files) as reader:
        for name, layer in checkpoint.layers.items():
            if layer.form == "plain":
                continue
            owned |= {f"{name}.{leaf}" for leaf in layer.tensors if leaf in OWN_LEAVES}
            yield f"{name}.weight", _weight(reader, layer, device).cpu()
        for name, place in checkpoint.places.items():
            if name not in owned and not name.endswith(KV_SCALES):
                stored = torch.frombuffer(reader.read(place), dtype=TORCH_DTYPES[place.dtype])
                yield name, stored.reshape(place.shape)


def _weight(reader: Reader, layer: Layer, device: torch.device) -> Tensor:
    whole = Slab(0, layer.shape[0])
    if layer.form == "nvfp4":
        return packed_rows(reader, layer.tensors, whole, device)
    return values(reader, layer, whole, device)


def plain_copy(folder: Path, copy: Path, device: torch.device) -> int:
    """Write ``folder`` to ``copy`` without quantization; how many layers it had quantized."""
    checkpoint = read_checkpoint(folder)
    save_file(dict(dequantized(checkpoint, device)), copy / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    (copy / "config.json").write_text(json.dumps(config))
    return sum(layer.form != "plain" for layer in checkpoint.layers.values())


@torch.no_grad()
def reference(folder: Path, rows: Tensor, dtype: torch.dtype, device: torch.device) -> Seen:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    logs, best = [], []
    for row in rows.to(device):
        found = model(input_ids=row[None]).logits[0, :-1].float().log_softmax(-1)
        logs.append(found.gather(1, row[1:, None]).squeeze(1).cpu())
        best.append(found.argmax(-1).cpu())
    return Seen(torch.cat(logs).double(), torch.cat(best))


def asked(engine: Endpoint, backend: str, rows: Tensor) -> Seen:
    """What the engine says. Raises CheckFailedError when it does not give log probabilities of prompt tokens."""
    found = [one for row in rows.tolist() for one in (_vllm if backend == "vllm" else _sglang)(engine, row)]
    return Seen(torch.tensor([one[0] for one in found]).double(), torch.tensor([one[1] for one in found]))


def _vllm(engine: Endpoint, ids: list[int]) -> list[tuple[float, int]]:
    given = engine.complete(ids, max_tokens=1, prompt_logprobs=1).raw["choices"][0].get("prompt_logprobs")
    if not given or len(given) != len(ids):
        raise CheckFailedError(f"{engine.url} gives no prompt_logprobs of all {len(ids)} tokens.")
    return [
        (at[str(token)]["logprob"], int(min(at, key=lambda one: at[one]["rank"])))
        for token, at in zip(ids[1:], given[1:], strict=True)
    ]


def _sglang(engine: Endpoint, ids: list[int]) -> list[tuple[float, int]]:
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 1,
    }
    response = engine.request("POST", "/generate", json=body)
    if response.status_code != 200:
        raise CheckFailedError(f"{engine.url} answered {response.status_code} to /generate: {response.text[:300]}")
    meta = response.json()["meta_info"]
    given, top = meta["input_token_logprobs"], meta["input_top_logprobs"]
    if [one[1] for one in given] != ids:
        raise CheckFailedError(f"{engine.url} gives no log probabilities of all {len(ids)} tokens.")
    return [(one[0], best[0][1]) for one, best in zip(given[1:], top[1:], strict=True)]


def compared(one: Seen, other: Seen) -> dict[str, float]:
    apart = one.logs - other.logs
    size = apart.abs()
    return {
        "mean_abs_nat": float(size.mean()),
        "p99_abs_nat": float(size.quantile(0.99)),
        "max_abs_nat": float(size.max()),
        "within_0.1_nat": float((size <= CLOSE_NAT).double().mean()),
        "mean_nat": float(apart.mean()),
        "k3_nat": float((apart.expm1() - apart).mean()),
        "top1": float((one.best == other.best).double().mean()),
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    words = AutoTokenizer.from_pretrained(given.checkpoint)
    rows = stream_rows(words, given.windows * given.tokens, given.tokens, held_out=True)
    with Endpoint(given.endpoint, timeout_s=300) as engine:
        backend = given.backend or ("vllm" if engine.get_json("/version") is not None else "sglang")
        seen = {"engine": asked(engine, backend, rows)}
    device = torch.device(given.device)
    with tempfile.TemporaryDirectory() as name:
        quantized = plain_copy(given.checkpoint, Path(name), device)
        for word, dtype in (("reference bf16", torch.bfloat16), ("reference f32", torch.float32)):
            seen[word] = reference(Path(name), rows, dtype, device)
    pairs = [("engine", "reference bf16"), ("engine", "reference f32"), ("reference bf16", "reference f32")]
    if given.against_bf16:
        seen["unquantized bf16"] = reference(given.against_bf16, rows, torch.bfloat16, device)
        pairs += [(one, "unquantized bf16") for one in ("engine", "reference bf16")]
    return {
        "checkpoint": given.checkpoint.name,
        "backend": backend,
        "quantized_layers": quantized,
        "tokens": len(seen["engine"].logs),
        "windows": len(rows),
        "loss_nat": {word: float(-one.logs.mean()) for word, one in seen.items()},
        "pairs": {f"{one} - {other}": compared(seen[one], seen[other]) for one, other in pairs},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--against-bf16", type=Path, help="the checkpoint before it was quantized")
    parser.add_argument("--backend", choices=("vllm", "sglang"), help="default: what answers")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    try:
        found = measure(given)
    except OptistackError as error:
        raise SystemExit(f"error: {error}") from error
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    for pair, row in found["pairs"].items():
        print(f"{pair:36} " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))


if __name__ == "__main__":
    main()
