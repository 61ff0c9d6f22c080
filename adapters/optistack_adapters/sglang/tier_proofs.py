"""Whether the KV tiers are there, and how large."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.verify.receipt import Observed
from optistack_adapters.sglang.flags.tiers import DIRECTORIES, GB
from optistack_adapters.sglang.log import LogFacts
from optistack_adapters.sglang.server_info import Info, Observations, field, hicache_on, section, states

if TYPE_CHECKING:
    from optistack.verify.metrics import Metrics

HOST_TOKENS = "sglang:hicache_host_total_tokens"

_HOST_FIELDS = (
    ("tiers.2.write_policy", "hicache_write_policy"),
    ("tiers.2.io_backend", "hicache_io_backend"),
    ("tiers.2.layout", "hicache_mem_layout"),
)


def read_tiers(info: Info, facts: LogFacts, metrics: Metrics) -> Observations:
    """Observations of the host tier and the storage tier; nothing where the engine does not say.

    The ``hicache_*`` fields are trusted only where something else shows that HiCache is attached.
    """
    attached, proof = _attached(info, facts, metrics)
    if attached is None:
        return {}
    if not attached:
        return {f"tiers.{level}.backend": Observed(value="none", proof=proof) for level in (2, 3)}
    seen = {"tiers.2.backend": Observed(value="native", proof=proof)}
    for path, name in _HOST_FIELDS:
        if isinstance(info.get(name), str):
            seen[path] = Observed(value=info[name], proof=field(name, info[name]))
    seen.update(_capacity(info, facts))
    seen.update(_storage(info, facts))
    return seen


def _attached(info: Info, facts: LogFacts, metrics: Metrics) -> tuple[bool | None, str]:
    if metrics.has(HOST_TOKENS):
        return True, f"/metrics {HOST_TOKENS} {metrics.find(HOST_TOKENS)[0].value:.0f}"
    if facts.hicache is not None:
        return facts.hicache.value == "True", f"log: {facts.hicache.line}"
    on = hicache_on(info)
    if on is None:
        return None, ""
    return on, field("enable_hierarchical_cache", on)


def _capacity(info: Info, facts: LogFacts) -> Observations:
    """Bytes over all ranks of the replica, a draft's pool included."""
    path = "tiers.2.capacity_bytes"
    ranks = info.get("tp_size") if isinstance(info.get("tp_size"), int) else None
    if facts.host_pool_lines:
        ranks = ranks or facts.ranks
        total = round(facts.host_pool_gb * GB * ranks)
        proof = f"log, on each of {ranks} ranks: " + "; ".join(facts.host_pool_lines)
        return {path: Observed(value=total, proof=proof)}
    size = info.get("hicache_size")
    if not isinstance(size, int) or size <= 0 or ranks is None:
        proof = f"{field('hicache_size', size)}: sized by its ratio to the device's pool; the log says how large"
        return {path: Observed(value=None, proof=proof)}
    proof = f"{field('hicache_size', size)} GB on each of {ranks} ranks"
    if info.get("speculative_draft_model_path") is not None:
        return {path: Observed(value=None, proof=f"{proof}, and the draft's pool beside it, which only the log gives")}
    return {path: Observed(value=size * GB * ranks, proof=proof)}


def _storage(info: Info, facts: LogFacts) -> Observations:
    backend = info.get("hicache_storage_backend")
    if "hicache_storage_backend" not in info or not isinstance(backend, str | None):
        return {}
    if facts.storage is not None:
        seen = {"tiers.3.backend": Observed(value=facts.storage.value, proof=f"log: {facts.storage.line}")}
    else:
        proof = field("hicache_storage_backend", backend)
        seen = {"tiers.3.backend": Observed(value="none" if backend is None else backend, proof=proof)}
    if backend is None:
        return seen
    policy = info.get("hicache_storage_prefetch_policy")
    if isinstance(policy, str):
        proof = field("hicache_storage_prefetch_policy", policy)
        seen["tiers.3.prefetch_policy"] = Observed(value=policy, proof=proof)
    seen.update(_directory(info, facts, backend))
    return seen


def _directory(info: Info, facts: LogFacts, backend: str) -> Observations:
    variable = DIRECTORIES.get(backend)
    if variable is None:
        return {}
    found = next((path for state in states(info) if (path := section(state, "env_vars").get(variable))), None)
    if isinstance(found, str):
        proof = f"/server_info internal_states[].env_vars.{variable}"
        return {"tiers.3.directory": Observed(value=found, proof=proof)}
    if facts.directory is not None:
        return {"tiers.3.directory": Observed(value=facts.directory.value, proof=f"log: {facts.directory.line}")}
    proof = f"SGLang reports {variable} with serving.dev_endpoints only, and logs a directory only when it makes it"
    return {"tiers.3.directory": Observed(value=None, proof=proof)}
