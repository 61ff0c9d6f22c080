"""The flags that the adapter owns, and the other spellings that vLLM's parser takes for them."""

from __future__ import annotations

OWNED = (
    "--model",
    "--revision",
    "--served-model-name",
    "--trust-remote-code",
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--enable-expert-parallel",
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--enable-prefix-caching",
    "--scheduling-policy",
    "--enforce-eager",
    "--max-cudagraph-capture-size",
    "--gpu-memory-utilization",
    "--kv-cache-memory-bytes",
    "--kv-cache-dtype",
    "--block-size",
    "--attention-backend",
    "--attention-config",
    "--quantization",
    "--moe-backend",
    "--linear-backend",
    "--speculative-config",
    "--kv-offloading-size",
    "--kv-offloading-backend",
    "--disable-hybrid-kv-cache-manager",
    "--reasoning-parser",
    "--tool-call-parser",
    "--enable-auto-tool-choice",
    "--enable-prompt-tokens-details",
    "--disable-log-stats",
    "--host",
    "--port",
)

ALIASES: dict[str, str] = {
    **{flag.replace("-", "_").replace("__", "--", 1): flag for flag in OWNED},
    **{flag.replace("--", "--no-", 1): flag for flag in OWNED},
    "-tp": "--tensor-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "-ac": "--attention-config",
    "--spec-method": "--speculative-config",
    "--spec-model": "--speculative-config",
    "--spec-tokens": "--speculative-config",
    # With both, --kv-offloading-size silently replaces the connector (vllm 0.33 config/vllm.py:1151), so they have one
    # owner here.
    "--kv-transfer-config": "--kv-offloading-size",
    "--kv_transfer_config": "--kv-offloading-size",
}
