"""The storage tier below HiCache."""

from __future__ import annotations

import re
from typing import Any

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.flags.tiers import DIRECTORIES
from optistack_adapters.sglang.rules.common import BACKENDS, on_cpu
from optistack_adapters.sglang.rules.tiers import hicache

_SIZE = re.compile(r"\d+(Ki|Mi|Gi|Ti)?|\d+(\.\d+)?[kMGT]")

SHARED_KEYS = {
    "prefetch_threshold": "a whole number",
    "prefetch_timeout_base": "a number",
    "prefetch_timeout_per_ki_token": "a number",
    "hicache_storage_pass_prefix_keys": "true or false",
}
"""What SGLang itself takes out of the extra config of every storage backend, and the type that it asks for."""

FILE_KEYS = {
    "max_size": "a size, such as 200G",
    "min_free_space": "a size, such as 200G",
    "eviction_ratio": "a number",
    "metadata_ttl": "a number",
    "enable_metadata_cache": "true or false",
}
"""The same of the file backend."""


def _is(kind: str, value: Any) -> bool:
    if kind == "true or false" or isinstance(value, bool):
        return kind == "true or false" and isinstance(value, bool)
    if kind.startswith("a size"):
        return isinstance(value, int | float) or (isinstance(value, str) and _SIZE.fullmatch(value) is not None)
    return isinstance(value, int if kind == "a whole number" else int | float)


def _wrong_types(context: RuleContext) -> str | None:
    storage = context.stack.tier(3)
    if storage is None or not hicache(context):
        return None
    kinds = SHARED_KEYS | (FILE_KEYS if storage.backend.value == "file" else {})
    given = {key: value for key, value in (storage.extra_config.value or {}).items() if key in kinds}
    wrong = [f"{key} must be {kinds[key]}, not {value!r}" for key, value in given.items() if not _is(kinds[key], value)]
    return "; ".join(wrong) or None


def _storage_backend(context: RuleContext) -> str | None:
    storage = context.stack.tier(3)
    word = storage.backend.value if storage is not None else None
    known = context.engine.trait("storage_backends", ())
    newer = ("sim", "npu_memcache", "seaweedfs", "tensorcast")
    return word if word is not None and not on_cpu(context) and word not in (*known, *newer) else None


def _dynamic(context: RuleContext) -> bool:
    storage = context.stack.tier(3)
    dynamic = storage is not None and storage.backend.value == "dynamic" and not storage.extra_config.is_set
    return hicache(context) and dynamic


def _no_directory(context: RuleContext) -> bool:
    storage = context.stack.tier(3)
    file = storage is not None and storage.backend.value == "file"
    return hicache(context) and file and not any(v.name == DIRECTORIES["file"] for v in context.launch.variables)


def _directory_unused(context: RuleContext) -> str | None:
    storage = context.stack.tier(3)
    if storage is None or not storage.directory.is_set or storage.backend.value in DIRECTORIES:
        return None
    return storage.backend.value


def _without_hicache(context: RuleContext) -> bool:
    launch = context.launch
    return launch.has("--hicache-storage-backend") and not launch.has("--enable-hierarchical-cache")


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-storage-backend",
        severity=Severity.ERROR,
        message="SGLang has no storage tier called {detail}.",
        fix="Use file, mooncake, nixl, or dynamic with a class of your own.",
        upstream="sglang 0.5.23 mem_cache/storage/backend_factory.py",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.CACHE,
        fires=_storage_backend,
    ),
    Rule(
        id="sglang-storage-dynamic",
        severity=Severity.ERROR,
        message="A dynamic storage tier needs the class to load; SGLang notices only when it starts.",
        fix="Give extra_config with backend_name, module_path and class_name.",
        upstream="sglang 0.5.23 mem_cache/storage/backend_factory.py:143",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_dynamic,
    ),
    Rule(
        id="sglang-storage-config",
        severity=Severity.ERROR,
        message="The storage tier's own settings are wrong: {detail}. SGLang fails with them when it starts, or does "
        "without them.",
        fix="Give values of these types (hicache's option storage_config).",
        upstream="sglang 0.5.23 mem_cache/hybrid_cache/hybrid_cache_controller.py:404, "
        "mem_cache/storage/file/lru_file_evictor.py:41",
        backends=BACKENDS,
        fires=_wrong_types,
    ),
    Rule(
        id="sglang-storage-file-directory",
        severity=Severity.ERROR,
        message="Without a directory of its own the file tier reads /tmp/hicache, whoever wrote it: the names of its "
        "files say neither KV dtype nor layout.",
        fix="Give the storage tier a directory.",
        upstream="sglang 0.5.23 mem_cache/hicache_storage.py:733, :762",
        backends=BACKENDS,
        domain=Domain.CACHE,
        fires=_no_directory,
    ),
    Rule(
        id="sglang-storage-directory-unused",
        severity=Severity.SILENT,
        message="The {detail} storage tier has no directory in SGLang; it is ignored.",
        fix="Say where it stores in its extra_config.",
        upstream="sglang 0.5.23 mem_cache/storage",
        backends=BACKENDS,
        fires=_directory_unused,
    ),
    Rule(
        id="sglang-storage-without-hicache",
        severity=Severity.SILENT,
        message="SGLang ignores --hicache-storage-backend without --enable-hierarchical-cache.",
        fix="Add a host tier, or take it out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_without_hicache,
    ),
)
