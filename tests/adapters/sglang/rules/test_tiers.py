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
