"""Speculation together with flags of its own, and methods other than DFlash."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.rules.common import (
    BACKENDS,
    attention_backends,
    drafting,
    drafting_method,
    kv_word,
    number,
    on_cpu,
    pages,
    said,
)

TREES = ("flashinfer", "fa3", "triton")
NGRAM_BREADTH = 10
"""What SGLang takes when nobody says (arg_groups/fields/spec.py, speculative_ngram_max_bfs_breadth)."""

EAGLES = ("eagle", "eagle3", "nextn", "standalone")
BLOCKS = ("eagle", "eagle3", "nextn", "dflash", "dspark")


def _topk(context: RuleContext) -> int:
    return number(context, "--speculative-eagle-topk") or 1


def _kernels(context: RuleContext) -> str:
    return context.stack.serving.attention_backend.value or ""


def _eagle_pages(context: RuleContext) -> str | None:
    tree = drafting(context, *EAGLES) and _topk(context) > 1 and pages(context) > 1
    return f"{_kernels(context)} with pages of {pages(context)}" if tree and _kernels(context) not in TREES else None


def _trtllm_topk(context: RuleContext) -> bool:
    return drafting(context, *EAGLES) and _topk(context) > 1 and "trtllm_mha" in attention_backends(context)


def _ngram_pages(context: RuleContext) -> str | None:
    breadth = number(context, "--speculative-ngram-max-bfs-breadth") or NGRAM_BREADTH
    wide = drafting(context, "ngram") and not on_cpu(context) and breadth > 1 and pages(context) > 1
    return f"{breadth} wide, on {_kernels(context)}" if wide and _kernels(context) != "flashinfer" else None


def _attention_data(context: RuleContext) -> str | None:
    spread = drafting(context, "ngram", "standalone") and context.spec.parallel.attention_data > 1
    return drafting_method(context) if spread else None


def _blocks(context: RuleContext) -> str | None:
    asked = context.launch.has("--speculative-use-block-verification")
    return drafting_method(context) or "no method" if asked and not drafting(context, *BLOCKS) else None


def _rejection(context: RuleContext) -> str | None:
    asked = context.launch.has("--speculative-use-rejection-sampling")
    return "standalone" if asked and drafting(context, "standalone") else None


def _rejection_topk(context: RuleContext) -> bool:
    asked = context.launch.has("--speculative-use-rejection-sampling")
    return asked and drafting(context, "eagle", "eagle3", "nextn") and _topk(context) > 1


def _mixed(context: RuleContext) -> str | None:
    asked = context.launch.has("--enable-mixed-chunk") and drafting(context, "ngram", "standalone")
    return drafting_method(context) if asked else None


def _sink(context: RuleContext) -> bool:
    launch = context.launch
    return launch.has("--speculative-draft-sink-size") and not launch.has("--speculative-draft-window-size")


def _pipeline(context: RuleContext) -> str | None:
    staged = (number(context, "--pp-size", "--pipeline-parallel-size") or 1) > 1
    return drafting_method(context) if staged and drafting(context) else None


def _hidden_states(context: RuleContext) -> bool:
    return context.launch.has("--enable-return-aux-hidden-states")


def _nvfp4_method(context: RuleContext) -> bool:
    return kv_word(context) == "nvfp4" and drafting(context, "standalone")


def _nvfp4_draft(context: RuleContext) -> str | None:
    word = said(context, "--speculative-draft-attention-backend")
    drafts = drafting(context, "eagle", "eagle3", "nextn") and kv_word(context) == "nvfp4"
    return word if drafts and word not in (None, "trtllm_mha") else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-eagle-tree-pages",
        severity=Severity.ERROR,
        message="A tree of drafts on pages of several tokens is not verified by {detail}.",
        fix=f"Take --speculative-eagle-topk out, or use {', '.join(TREES)}.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:1278",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_eagle_pages,
    ),
    Rule(
        id="sglang-trtllm-mha-tree",
        severity=Severity.ERROR,
        message="trtllm_mha verifies a chain of drafts, and --speculative-eagle-topk asks for a tree.",
        fix="Take --speculative-eagle-topk out, or use other attention kernels.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:1178",
        backends=BACKENDS,
        fires=_trtllm_topk,
    ),
    Rule(
        id="sglang-ngram-tree-pages",
        severity=Severity.ERROR,
        message="NGRAM's tree needs pages of one token there: it is {detail}.",
        fix="Set --speculative-ngram-max-bfs-breadth to 1, or use flashinfer.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:1361",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_ngram_pages,
    ),
    Rule(
        id="sglang-speculation-attention-data",
        severity=Severity.ERROR,
        message="SGLang has no {detail} speculation with data-parallel attention.",
        fix="Set parallel.attention_data to 1, or use another method.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:1078, :1366",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_attention_data,
    ),
    Rule(
        id="sglang-block-verification-method",
        severity=Severity.ERROR,
        message="--speculative-use-block-verification is for EAGLE, NEXTN, DFLASH and DSPARK, not for {detail}.",
        fix="Take it out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:175",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_blocks,
    ),
    Rule(
        id="sglang-rejection-sampling-method",
        severity=Severity.ERROR,
        message="--speculative-use-rejection-sampling is for EAGLE and NEXTN, not for {detail}.",
        fix="Take it out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:1215",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_rejection,
    ),
    Rule(
        id="sglang-rejection-sampling-tree",
        severity=Severity.ERROR,
        message="--speculative-use-rejection-sampling needs a chain of drafts, and --speculative-eagle-topk asks for a "
        "tree.",
        fix="Take one of the two out.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:1222",
        backends=BACKENDS,
        fires=_rejection_topk,
    ),
    Rule(
        id="sglang-mixed-chunk-method",
        severity=Severity.OVERRIDE,
        message="SGLang switches --enable-mixed-chunk off for {detail} speculation.",
        fix="Take it out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:1109, :1331",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_mixed,
    ),
    Rule(
        id="sglang-draft-sink-window",
        severity=Severity.ERROR,
        message="--speculative-draft-sink-size is part of a window, and there is none.",
        fix="Set speculation.draft_window_tokens, or take the sink out.",
        upstream="sglang 0.5.23 arg_groups/speculative_hook.py:227",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_sink,
    ),
    Rule(
        id="sglang-speculation-pipeline",
        severity=Severity.ERROR,
        message="SGLang has no {detail} speculation with pipeline parallelism in an engine that prefills and decodes.",
        fix="Take --pp-size out of engine_args, or leave speculation out.",
        upstream="sglang 0.5.23 arg_groups/validation_hook.py:132, arg_groups/speculative_hook.py:319",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_pipeline,
    ),
    Rule(
        id="sglang-hidden-states-capture",
        severity=Severity.ERROR,
        message="--enable-return-aux-hidden-states needs a method and no draft, and switches drafting off.",
        fix="Take it out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/validation_hook.py:704",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_hidden_states,
    ),
    Rule(
        id="sglang-nvfp4-kv-standalone",
        severity=Severity.ERROR,
        message="SGLang does not speculate with a standalone draft on NVFP4 KV.",
        fix="Use fp8_e4m3 KV, or EAGLE.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:183",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        sm=(100, 103),
        versions=">=0.5.21",
        fires=_nvfp4_method,
    ),
    Rule(
        id="sglang-nvfp4-kv-draft-kernels",
        severity=Severity.ERROR,
        message="On NVFP4 KV a draft runs on trtllm_mha only, not on {detail}.",
        fix="Set speculation.draft_attention_backend to trtllm_mha, or use fp8_e4m3 KV.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:226",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        sm=(100, 103),
        versions=">=0.5.21",
        fires=_nvfp4_draft,
    ),
)
