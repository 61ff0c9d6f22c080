"""What a draft, its KV and the target's captured states take in a running vLLM, in bytes, beside the plan's formulas.

    python memory.py --target CHECKPOINT --draft DRAFT [--tokens 2048]

On a CPU or on a GPU, with the Python of a vLLM; the engine runs in this process. One prompt of --tokens tokens is one
chunk of prefill. On a GPU the peak of that chunk is told with and without a draft (--draft none).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--draft-tokens", type=int, default=7)
    given = parser.parse_args()
    import vllm
    from vllm.v1.spec_decode.dflash import DFlashProposer

    seen: dict[str, int] = {}
    propose = DFlashProposer.propose

    def watched(self: Any, **given: Any) -> Any:
        states = given["target_hidden_states"]
        seen["hidden_states_bytes"] = max(seen.get("hidden_states_bytes", 0), states.nbytes)
        seen["hidden_states_tokens"] = max(seen.get("hidden_states_tokens", 0), len(states))
        return propose(self, **given)

    DFlashProposer.propose = watched
    draft = {} if given.draft == "none" else {
        "speculative_config": {
            "method": "dflash", "model": given.draft, "num_speculative_tokens": given.draft_tokens,
        }
    }  # fmt: skip
    engine = vllm.LLM(
        model=str(given.target),
        dtype="bfloat16",
        max_model_len=given.tokens + 64,
        max_num_seqs=4,
        max_num_batched_tokens=given.tokens,
        enable_prefix_caching=False,
        enforce_eager=True,
        gpu_memory_utilization=0.4,
        **draft,
    )
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    found: dict[str, Any] = {"engine": f"vllm {vllm.__version__}", "draft": Path(given.draft).name}
    if draft:
        own, shared = 0, {one.data_ptr() for one in runner.model.parameters()}
        for one in runner.drafter.model.parameters():
            own += 0 if one.data_ptr() in shared else one.nbytes
        found["draft_weight_bytes"] = own
        names = runner.drafter._draft_attn_layer_names
        layers = runner.compilation_config.static_forward_context
        blocks = runner.kv_cache_config.num_blocks
        page = runner.cache_config.block_size
        kv = sum(layers[name].kv_cache.nbytes for name in names)
        found["draft_kv_bytes_per_token"] = kv / (blocks * page)
        found["kv_tokens"] = blocks * page
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    prompt = [(7 * number) % 4000 + 100 for number in range(given.tokens - 16)]
    parameters = vllm.SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, detokenize=False)
    engine.generate([{"prompt_token_ids": prompt}], parameters, use_tqdm=False)
    if cuda:
        found["peak_over_idle_bytes"] = torch.cuda.max_memory_allocated() - before
    found.update(seen)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
