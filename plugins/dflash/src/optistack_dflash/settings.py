"""What the plugin asks of the engine, and why."""

from __future__ import annotations

from typing import Any

from optistack.context import PlanContext
from optistack.errors import InputError, PlanRefusedError
from optistack.settings import Serving, Speculation, Value, choose, constrain, suggest
from optistack.versions import at_least
from optistack_dflash.draft import Draft, check_fit, read_draft
from optistack_dflash.options import DFlashOptions
from optistack_dflash.sizing import charges, ranks_of

SGLANG_DRAFT_BACKENDS = ("flashinfer", "fa3", "fa4", "triton", "trtllm_mha")
"""Attention kernels that SGLang's DFlash draft runs on NVIDIA; another word is replaced with a warning only
(sglang 0.5.23 arg_groups/choices.py:103, arg_groups/speculative_hook.py:886)."""

BLACKWELL = (100, 103)
SCALED_ROPES = ("default", "linear", "llama3", "ntk", "proportional")
ENGINES_OWN_REQUESTS = {
    "sglang": "SGLang would silently take 48 with a draft",
    "vllm": "vLLM would keep draft slots for as many as 1024",
}


def decide(ctx: PlanContext) -> Speculation:
    """The speculation settings for the draft named in the options.

    Raises PlanRefusedError when the draft does not fit the target, InputError when it cannot be read.
    """
    options: DFlashOptions = ctx.options
    try:
        facts = ctx.load_model(options.draft, options.draft_config)
    except InputError as error:
        names = "draft" if options.draft_config is None else "draft or draft_config"
        raise InputError(f"Option {names} of plugin dflash: {error.message}", fix=error.fix) from None
    draft = read_draft(facts)
    check_fit(draft, ctx.model, tensor=ranks_of(ctx), backend=ctx.engine.backend)
    tokens = _num_draft_tokens(draft, options)
    return Speculation(
        method=choose("dflash", why="the draft is a DFlash draft", reference="https://github.com/z-lab/dflash"),
        draft_checkpoint=choose(options.draft, why="option draft"),
        num_draft_tokens=tokens,
        draft_quantization=_quantization(ctx, draft),
        draft_attention_backend=_attention_backend(ctx, draft),
        draft_window_tokens=_window(options, tokens.value or 0),
        serving=_serving(ctx, draft, tokens.value or 0),
        charges=charges(ctx, draft),
    )


def _num_draft_tokens(draft: Draft, options: DFlashOptions) -> Value[int]:
    most, asked = draft.num_draft_tokens, options.num_draft_tokens
    where = str(draft.facts.config_file)
    if most is None:
        if asked is None:
            raise PlanRefusedError(
                f"{where} gives no block_size, so how many tokens {draft.name} drafts in one step is not known.",
                fix="Set the option num_draft_tokens to the block size that it was trained with, less 1.",
            )
        return choose(asked, why="option num_draft_tokens")
    if most < 1:
        raise PlanRefusedError(
            f"{where} says block_size is {draft.block_size}: a block is the last known token and at least one draft.",
            fix="Download the draft again.",
        )
    if asked is not None and asked > most:
        raise PlanRefusedError(
            f"num_draft_tokens is {asked}, and {draft.name} was trained to draft {most}.",
            fix=f"Ask for at most {most} (block_size {draft.block_size}, less the token already known).",
        )
    why = "option num_draft_tokens" if asked else f"block_size {draft.block_size} less the token already known"
    return Value(value=asked or most, default=asked is None, at_most=most, why=why, reference=where)


def _quantization(ctx: PlanContext, draft: Draft) -> Value[str]:
    options: DFlashOptions = ctx.options
    if options.draft_quantization is not None:
        return choose(options.draft_quantization, why="option draft_quantization")
    if ctx.model.quantization is not None and draft.facts.quantization is None:
        return suggest(
            "none",
            why=f"the target is {ctx.model.quantization.method} and the draft is {draft.facts.dtype}; a draft inherits "
            "the target's quantization flag where there is one",
            reference="sglang 0.5.23 arg_groups/serving_hook.py:685",
        )
    return Value()


def _attention_backend(ctx: PlanContext, draft: Draft) -> Value[str]:
    options: DFlashOptions = ctx.options
    known = SGLANG_DRAFT_BACKENDS if ctx.engine.backend == "sglang" else ()
    if options.draft_attention_backend is not None:
        return Value(value=options.draft_attention_backend, one_of=known, why="option draft_attention_backend")
    if ctx.engine.device == "cpu":
        return Value()
    if ctx.engine.backend == "vllm" and ctx.node.sm in BLACKWELL and not draft.causal:
        return suggest(
            "FLASH_ATTN",
            why="the draft attends both ways, and FlashInfer's path for that is known to have problems on SM100",
            reference="vllm 0.33 platforms/cuda.py:148, https://github.com/vllm-project/vllm/pull/43081",
        )
    if ctx.engine.backend == "sglang":
        return _sglang_backend(ctx, draft, known)
    return Value()


def _sglang_backend(ctx: PlanContext, draft: Draft, known: tuple[str, ...]) -> Value[str]:
    """What SGLang itself would settle on, said aloud: it replaces what does not fit with a line in the log only."""
    serving = ctx.so_far.serving
    target = serving.prefill_attention_backend.value or serving.attention_backend.value
    if target is None:
        return constrain(one_of=known, why="the kernels that SGLang's DFlash draft has")
    all_windowed = draft.windowed_layers == draft.facts.layers
    if target == "trtllm_mha" and not (all_windowed or draft.causal):
        word = "fa4" if ctx.node.sm in BLACKWELL else "flashinfer"
        why = "trtllm_mha takes a draft only if all its layers are windowed or causal"
    elif target in known:
        word, why = target, "the draft runs on the target's prefill kernels where it can"
    else:
        word, why = "flashinfer", f"the draft is no MLA model and cannot run on the target's {target}"
    return Value(
        value=word,
        default=True,
        one_of=known,
        why=why,
        reference="sglang 0.5.23 arg_groups/speculative_hook.py:886",
    )


def _window(options: DFlashOptions, tokens: int) -> Value[int]:
    if options.draft_window_tokens is None:
        return Value()
    return Value(
        value=options.draft_window_tokens,
        at_least=tokens + 1,
        why="option draft_window_tokens; a window holds at least one block",
        reference="sglang 0.5.23 arg_groups/speculative_hook.py:430",
    )


def _serving(ctx: PlanContext, draft: Draft, tokens: int) -> Serving:
    said = ctx.so_far.serving.max_running_requests
    asked = said.value if said.value is not None and not said.default else None
    running = asked or ctx.parallel.for_all_groups(2 * ctx.workload.concurrency)
    fields: dict[str, Value[Any]] = {}
    if asked is None:
        fields["max_running_requests"] = suggest(
            running,
            why=f"twice the workload's concurrency of {ctx.workload.concurrency}, so that a burst is not queued; "
            + ENGINES_OWN_REQUESTS.get(ctx.engine.backend, "an engine's own default reckons without a draft"),
            reference="sglang 0.5.23 arg_groups/speculative_hook.py:437, vllm 0.33 config/vllm.py:2388",
        )
    if ctx.engine.backend == "vllm":
        fields["chunked_prefill_tokens"] = _prefill_budget(ctx, ctx.parallel.of_group(running), tokens + 1)
        fields["context_tokens"] = _context(ctx, draft)
    return Serving(**fields)


def _prefill_budget(ctx: PlanContext, running: int, block: int) -> Value[int]:
    """vLLM takes a block for every running request of an attention group, which is an engine of its own, out of the
    prefill budget, or cuts requests that do not fit."""
    needed = running * block
    default = ctx.engine.trait("default_prefill_tokens")
    short = default is not None and default < needed and ctx.so_far.serving.chunked_prefill_tokens.value is None
    return Value(
        value=needed if short else None,
        default=short,
        at_least=needed,
        why=f"one block of {block} tokens for each of {running} running requests must fit into a pass; "
        "vLLM 0.26 takes them out of the prefill budget, 0.33 lowers the number of requests",
        reference="vllm 0.26 config/vllm.py:1712, vllm 0.33 config/vllm.py:2388",
    )


def _context(ctx: PlanContext, draft: Draft) -> Value[int]:
    """vLLM 0.33 lowers the *target's* context to the draft's where it cannot stretch the draft's positions."""
    rope = draft.facts.config.get("rope_parameters") or draft.facts.config.get("rope_scaling") or {}
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    longest = draft.facts.max_context_tokens
    if kind in SCALED_ROPES or not longest or not at_least(ctx.engine.version, "0.33"):
        return Value()
    return constrain(
        at_most=longest,
        why=f"the draft's {kind} positions end at {longest} tokens, and vLLM would lower the target's context to that",
        reference="vllm 0.33 config/vllm.py:3025",
    )
