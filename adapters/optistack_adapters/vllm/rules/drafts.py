"""What a draft is, against what the stack says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.vllm.rules.reading import method, on_cpu

_EXPLICIT = ("eagle", "eagle3", "dflash", "dspark")
"""Methods that vLLM keeps when they are given; it takes any other from the draft's path first."""

_WORDS = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")
_MTP_KEYS = re.compile(r"nextn|mtp")
_DFLASH = re.compile(r"^DFlash|DFlash|LiLiCorr|MuseGlimmer")


def _no_tokens(context: RuleContext) -> str | None:
    word = method(context)
    counted = word not in (None, "mtp", "suffix")
    return word if counted and not context.stack.speculation.num_draft_tokens.is_set else None


def _from_path(context: RuleContext) -> str | None:
    word, draft = method(context), context.stack.speculation.draft_checkpoint.value
    if word is None or draft is None or word in (*_EXPLICIT, *_WITHOUT_MODEL, "medusa"):
        return None
    found = next((other for part, other in _WORDS if part in draft.lower()), None)
    return f"{draft} makes it {found}, not {word}" if found else None


def _no_mtp(context: RuleContext) -> bool:
    asked = method(context) == "mtp" and not context.stack.speculation.draft_checkpoint.is_set
    return asked and not any(_MTP_KEYS.search(key) and value for key, value in _items(context.model.config))


def _items(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _items(value)
        else:
            yield key, value


def _kind(context: RuleContext) -> str | None:
    word, config = method(context), _draft(context)
    if word is None or config is None or word == "dspark":
        return None
    architecture = next(iter(config.get("architectures") or ()), "")
    if not architecture or (word == "dflash") == bool(_DFLASH.search(architecture)):
        return None
    return f"method {word}, and the draft is a {architecture}"


def _short(context: RuleContext) -> str | None:
    config, limit = _draft(context), context.stack.serving.context_tokens.value
    longest = (config or {}).get("max_position_embeddings")
    if not isinstance(longest, int) or limit is None or longest >= limit:
        return None
    return f"{longest:,} of {limit:,} tokens"


def _speculators(context: RuleContext) -> bool:
    config = _draft(context)
    return method(context) == "dflash" and not on_cpu(context) and "speculators_model_type" in (config or {})


def _draft(context: RuleContext) -> dict[str, Any] | None:
    """The draft's config.json, where its checkpoint is a folder on this machine."""
    reference = context.stack.speculation.draft_checkpoint.value
    if reference is None or method(context) in _WITHOUT_MODEL:
        return None
    try:
        config = json.loads((Path(reference).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _suffix(context: RuleContext) -> bool:
    return method(context) == "suffix"


def _cpu_sampling(context: RuleContext) -> bool:
    return on_cpu(context) and method(context) is not None


DRAFT_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-draft-tokens",
        severity=Severity.ERROR,
        message="vLLM has to be told how many tokens {detail} drafts in a step.",
        fix="Set num_draft_tokens of the speculation plugin.",
        upstream="vllm 0.33 config/speculative.py:1948",
        fires=_no_tokens,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        domain=Domain.SPECULATION,
    ),
    Rule(
        id="vllm-method-from-path",
        severity=Severity.OVERRIDE,
        message="vLLM reads the method out of the draft's path (--speculative-config.method): {detail}.",
        fix="Rename the draft's folder, or name the method that it is for.",
        upstream="https://github.com/vllm-project/vllm/issues/47486, vllm 0.33 config/speculative.py:1445",
        fires=_from_path,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-mtp-layers",
        severity=Severity.ERROR,
        message="Method mtp drafts with layers of the model itself, and this checkpoint has none.",
        fix="Use another method, or a checkpoint with its MTP layers.",
        upstream="vllm 0.33 config/speculative.py: Unsupported speculative method",
        fires=_no_mtp,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        domain=Domain.SPECULATION,
    ),
    Rule(
        id="vllm-draft-architecture",
        severity=Severity.ERROR,
        message="The draft is for another method: {detail}.",
        fix="Name the method that the draft was made for.",
        upstream="vllm 0.33 transformers_utils/configs/eagle.py, model_executor/models/registry.py:664",
        fires=_kind,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        domain=Domain.SPECULATION,
    ),
    Rule(
        id="vllm-draft-context",
        severity=Severity.DEGRADED,
        message="The draft knows fewer positions than the context has, {detail}: beyond them vLLM does not draft, and "
        "0.33 may lower the model's own context to them.",
        fix="Use a draft that was trained for the whole context.",
        upstream="vllm 0.33 config/speculative.py:1800, config/vllm.py:3025",
        fires=_short,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-speculators-dflash",
        severity=Severity.DEGRADED,
        message="DFlash drafts in the speculators format are reported to have none of their drafts accepted by vLLM's "
        "V2 model runner, which 0.32 and later take.",
        fix="Have the plugin check the acceptance length, or set VLLM_USE_V2_MODEL_RUNNER=0.",
        upstream="https://github.com/vllm-project/vllm/issues/49559",
        fires=_speculators,
        evidence=Evidence.REPORTED,
        backends=("vllm",),
        versions=">=0.32",
    ),
    Rule(
        id="vllm-suffix-package",
        severity=Severity.NOTE,
        message="Method suffix needs the package arctic-inference in the engine's environment, and vLLM does not "
        "start without it.",
        fix="Install arctic-inference==0.1.1 there.",
        upstream="vllm 0.33 config/speculative.py:1729",
        fires=_suffix,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-cpu-speculative-sampling",
        severity=Severity.DEGRADED,
        message="vLLM's CPU build speculates rightly for greedy requests only: where a request samples, the "
        "temperature, top_k and top_p of drafted positions are read from memory that was never written, whatever the "
        "method drafts. Any token may then take a rejected draft's place (20 to 40 nat below the target's best were "
        "seen).",
        fix="Send temperature 0 to this engine; a request that names none is sampled.",
        upstream="https://github.com/vllm-project/vllm/issues/55005, vllm 0.33 utils/cpu_triton_utils.py:390, seen "
        "with vllm-cpu 0.32.0",
        fires=_cpu_sampling,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
        versions=">=0.26",
    ),
)
