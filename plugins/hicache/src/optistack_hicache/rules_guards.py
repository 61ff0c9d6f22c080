"""Rules that keep a storage folder from being unusable, shared by what must not share it, or read damaged."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack.versions import at_least

FOLDER_MESSAGE = "The storage tier cannot work here: {detail}."
FOLDER_FIX = (
    "Set storage_dir to another folder, or make this one fit: clear it, make room, give rights, lower the quota."
)
PACKAGE_FIX = "Install it in the engine's environment, or use storage: file."

UNSEEN_FLAGS = (
    "--json-model-override-args",
    "--hf-overrides",
    "--dtype",
    "--revision",
    "--quantization",
    "--load-format",
    "--quantization-param-path",
    "--calculate-kv-scales",
    "--kv-cache-dtype-skip-layers",
    "--kv-cache-dtype",
    "--page-size",
    "--block-size",
)
"""Flags that change KV bytes or how they lie; given by hand, nothing in the stack knows of them."""

SHORT_FLAGS = {"-q": "--quantization"}


def _folder(context: RuleContext) -> str | None:
    """Only where the engine is on this machine: a plan for another one says nothing of the folders here."""
    from optistack_hicache.start import in_the_way

    return in_the_way(context.stack) if context.engine.installed else None


def _package(context: RuleContext) -> str | None:
    from optistack_hicache.start import lacking

    return lacking(context.stack, context.engine)


def _damage(context: RuleContext) -> bool:
    tier = context.stack.tier(3)
    if tier is None or tier.backend.value != "file":
        return False
    repaired = {"sglang": "0.5.23", "vllm": "0.32"}.get(context.engine.backend)
    return repaired is not None and not at_least(context.engine.version, repaired)


def _copies(context: RuleContext) -> str | None:
    tier = context.stack.tier(2)
    if tier is None or tier.layout.value is None:
        return None
    layout, io_backend, attention = tier.layout.value, tier.io_backend.value or "kernel", context.model.attention.kind
    if layout == "page_first_kv_split":
        return f"layout {layout} on a GPU of NVIDIA (it is Ascend's)"
    if layout == "page_head" and attention == "mla":
        return "layout page_head for an MLA model, which has one head"
    return "layout page_head with io_backend direct" if (layout, io_backend) == ("page_head", "direct") else None


def _by_hand(context: RuleContext) -> str | None:
    tier = context.stack.tier(3)
    options = context.spec.plugins.get("hicache") or {}
    if tier is None or options.get("storage_tag"):
        return None
    words = context.spec.engine_args
    flags = [_spelled_out(word) for word in words]
    if not any(word.rpartition("=")[2] == "dummy" for word in words):  # other formats load the same weights
        flags = [flag for flag in flags if flag != "--load-format"]
    return " and ".join(dict.fromkeys(flag for flag in flags if flag in UNSEEN_FLAGS)) or None


def _spelled_out(word: str) -> str:
    """The flag of ``word`` as its engine's help has it. vLLM also takes ``--hf_overrides`` and
    ``--hf-overrides.rope_theta``; abbreviations are refused where the engine's flags are known."""
    flag = word.partition("=")[0].partition(".")[0]
    return SHORT_FLAGS.get(flag, flag.replace("_", "-"))


def _config_alone(context: RuleContext) -> str | None:
    options = context.spec.plugins.get("hicache") or {}
    if context.stack.tier(3) is None or context.model.evidence == "headers" or options.get("storage_tag"):
        return None
    return context.model.source


GUARDS = (
    Rule(
        id="hicache-storage-folder",
        severity=Severity.ERROR,
        fires=_folder,
        message=FOLDER_MESSAGE,
        fix=FOLDER_FIX,
        upstream="sglang 0.5.23 mem_cache/hicache_storage.py:787, vllm 0.33 v1/kv_offload/tiering/fs/manager.py",
        evidence=Evidence.OBSERVED,
    ),
    Rule(
        id="hicache-storage-package",
        severity=Severity.ERROR,
        fires=_package,
        message="{detail}.",
        fix=PACKAGE_FIX,
        upstream="sglang 0.5.23 mem_cache/storage/backend_factory.py",
    ),
    Rule(
        id="hicache-sglang-copies",
        severity=Severity.ERROR,
        backends=("sglang",),
        fires=_copies,
        message="SGLang takes {detail} and fails when it makes the host pool or first copies into it.",
        fix="Leave layout out, or use page_first, page_first_direct or layer_first.",
        upstream="sglang 0.5.17 to 0.5.23 mem_cache/pool_host/mha.py, mla.py: Unsupported layout",
    ),
    Rule(
        id="hicache-storage-by-hand",
        severity=Severity.ERROR,
        fires=_by_hand,
        message="{detail} of engine_args changes KV bytes, and the storage folder's name does not know of it: an "
        "engine without it would read the same files.",
        fix="Give the option storage_tag a word for it, or set it through the stack file.",
        upstream="sglang 0.5.23 mem_cache/hicache_storage.py:762, vllm 0.33 v1/kv_offload/file_mapper.py",
        evidence=Evidence.OBSERVED,
    ),
    Rule(
        id="hicache-storage-config-alone",
        severity=Severity.NOTE,
        fires=_config_alone,
        message="The weights of {detail} are not here, so the storage folder is named by their config alone: other "
        "weights of that shape and name, a later revision for one, would read the same files.",
        fix="Plan beside the weights, or give storage_tag a word for them, such as the revision.",
        upstream="sglang 0.5.23 mem_cache/hicache_storage.py:762, vllm 0.33 v1/kv_offload/file_mapper.py",
    ),
    Rule(
        id="hicache-storage-damage",
        severity=Severity.DEGRADED,
        fires=_damage,
        message="A file in storage that is too short does more than miss: SGLang before 0.5.23 then reads nothing from "
        "storage until a restart, and vLLM before 0.32 lets the request wait without end, as it does when a file goes "
        "away between look-up and read.",
        fix="Run `optistack hicache verify --sizes-only --remove` on storage_dir before each start, or use SGLang "
        "0.5.23 or vLLM 0.32.",
        upstream="sglang 0.5.21 managers/cache_controller.py prefetch_io_aux_func, vllm 0.26 "
        "v1/kv_offload/tiering/manager.py lookup",
        evidence=Evidence.OBSERVED,
    ),
)
