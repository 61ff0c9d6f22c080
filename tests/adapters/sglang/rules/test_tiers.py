"""Rules about KV tiers."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.settings import CacheTier, choose
from optistack_adapters.sglang.rules.storage import RULES as STORAGE
from optistack_adapters.sglang.rules.tiers import RULES as TIERS

GB = 10**9
TP4: dict[str, Any] = {"parallel": {"tensor": 4}}
LAYOUT = {"layout": "page_first", "io_backend": "kernel"}
DIRECT = {"layout": "page_first_direct", "io_backend": "direct"}


def host(**more: Any) -> CacheTier:
    fields = {"capacity_bytes": 40 * GB, **more}
    return CacheTier(level=2, **{name: choose(value) for name, value in fields.items() if value is not None})


def storage(name: str, **more: Any) -> CacheTier:
    return CacheTier(level=3, backend=choose(name), **{key: choose(value) for key, value in more.items()})


CASES: dict[str, Any] = {
    "sglang-host-tier-backend": (((host(backend="lmcache"),), TP4), ((host(backend="native"),), TP4)),
    "sglang-hicache-needs-radix": (
        ((host(),), {**TP4, "serving": {"prefix_caching": False}}),
        ((host(),), TP4),
    ),
    "sglang-hicache-direct-layout": (
        ((host(layout="page_first_direct", io_backend="kernel"),), TP4),
        ((host(**DIRECT),), TP4),
    ),
    "sglang-hicache-direct-io": (
        ((host(layout="page_first", io_backend="direct"),), TP4),
        ((host(**LAYOUT),), TP4),
    ),
    "sglang-hicache-mooncake-layout": (
        ((host(layout="layer_first"), storage("mooncake")), TP4),
        ((host(layout="layer_first"), storage("file", directory="/kv")), TP4),
    ),
    "sglang-hicache-words": (
        ((host(write_policy="write_sometimes"),), TP4),
        ((host(write_policy="write_back"),), TP4),
    ),
    "sglang-hicache-host-ram": (
        ((host(capacity_bytes=1095 * GB),), TP4),  # half of 2 TiB is 1,099.5 GB
        ((host(capacity_bytes=1080 * GB),), TP4),
    ),
    "sglang-hicache-whole-gigabytes": (
        ((host(capacity_bytes=7_600_000_000),), TP4),
        ((host(capacity_bytes=8 * GB),), TP4),
    ),
    "sglang-storage-backend": (((host(), storage("floppy")), TP4), ((host(), storage("nixl")), TP4)),
    "sglang-storage-dynamic": (
        ((host(), storage("dynamic")), TP4),
        ((host(), storage("dynamic", extra_config={"backend_name": "x"})), TP4),
    ),
    "sglang-storage-config": (
        ((host(), storage("nixl", extra_config={"prefetch_timeout_base": "x"})), TP4),
        ((host(), storage("nixl", extra_config={"prefetch_timeout_base": 2, "max_size": "mine"})), TP4),
    ),
    "sglang-storage-file-directory": (
        ((host(), storage("file")), TP4),
        ((host(), storage("file", directory="/kv")), TP4),
    ),
    "sglang-storage-directory-unused": (
        ((host(), storage("mooncake", directory="/kv")), TP4),
        ((host(), storage("nixl", directory="/kv")), TP4),
    ),
    "sglang-storage-without-hicache": (
        ((), {**TP4, "engine_args": ["--hicache-storage-backend", "file"]}),
        ((host(), storage("file", directory="/kv")), TP4),
    ),
}
"""A plan on which the rule fires, and one on which it does not: settings, and the rest of the stack."""


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in (*TIERS, *STORAGE)} == set(CASES)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_fires_and_does_not(rule: str, plan_of: Any, fired: Any) -> None:
    bad, good = CASES[rule]
    message = fired(plan_of(bad)).get(rule)
    assert message is not None
    assert "{" not in message
    assert rule not in fired(plan_of(good))


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("prefetch_threshold", [512], [True, 0.5, "512", None]),
        ("prefetch_timeout_base", [2, 0.5], [True, "x", None]),
        ("hicache_storage_pass_prefix_keys", [True], [1, "true"]),
        ("max_size", [10**9, "200G", "1.5T", "8Gi", "1000"], [True, "200GB", "1.5Gi", "much"]),
        ("eviction_ratio", [0.8], ["0.8%", True]),
    ],
)
def test_the_types_of_the_file_tiers_settings(
    key: str, right: list[Any], wrong: list[Any], plan_of: Any, fired: Any
) -> None:
    def message(value: Any) -> str | None:
        tiers = (host(), storage("file", directory="/kv", extra_config={key: value}))
        found: str | None = fired(plan_of((tiers, TP4))).get("sglang-storage-config")
        return found

    assert [value for value in right if message(value) is not None] == []
    assert [value for value in wrong if f"{key} must be " not in (message(value) or "")] == []
