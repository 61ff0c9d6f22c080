"""KV tiers below the GPU."""

from __future__ import annotations

from typing import Any

from optistack.facts.node import GIB
from optistack.verify.receipt import Observed
from optistack_adapters.vllm.observe.evidence import CACHE_INFO, Evidence
from optistack_adapters.vllm.tiers import SELECTIVE

OFFLOAD_INFO = "vllm:kv_offload_config_info"
OFFLOAD = "vllm:kv_offload_"
TIERING = "vllm:kv_offload_tiering_"
SKIPPED = "vllm:kv_offload_cpu_stores_skipped_total"
NONE = "none"

_HOST_OF = {
    "OffloadingConnector": "native",
    "SimpleCPUOffloadConnector": "native",
    "LMCacheMPConnector": "lmcache",
    "LMCacheConnectorV1": "lmcache",
}
_STORAGE_OF = {"fs": "file", "MooncakeStoreConnector": "mooncake", "LMCacheMPConnector": "lmcache"}


def observe_tiers(evidence: Evidence) -> dict[str, Observed | None]:
    if not evidence.metrics.samples:
        return {}
    connectors = _connectors(evidence)
    offloads = any(sample.name.startswith(OFFLOAD) for sample in evidence.metrics.samples)
    host = _host(evidence, connectors, offloads)
    found: dict[str, Observed | None] = {
        "tiers.2.backend": host,
        "tiers.3.backend": _storage(evidence, connectors),
        **_folder(connectors),
    }
    if host is not None and host.value == NONE:
        found["tiers.2.capacity_bytes"] = Observed(value=0, proof=host.proof)
    elif host is not None and host.value == "native":
        found["tiers.2.capacity_bytes"] = _capacity(evidence, connectors)
        found["tiers.2.write_policy"] = _policy(evidence)
    return found


def _connectors(evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Connectors of the resolved configuration and their extra settings, those inside a MultiConnector too."""
    config = evidence.setting("kv_transfer_config")
    if not isinstance(config, dict) or not config.get("kv_connector"):
        return {}
    extra = config.get("kv_connector_extra_config") or {}
    children = extra.get("connectors") if config["kv_connector"] == "MultiConnector" else [config]
    return {
        str(child["kv_connector"]): child.get("kv_connector_extra_config") or {}
        for child in children or ()
        if isinstance(child, dict) and child.get("kv_connector")
    }


def _host(evidence: Evidence, connectors: dict[str, dict[str, Any]], offloads: bool) -> Observed | None:
    for name, word in _HOST_OF.items():
        if name in connectors:
            return Observed(value=word, proof=f"/server_info kv_transfer_config names {name}")
    if offloads:
        return Observed(value="native", proof=f"/metrics has the {OFFLOAD}* families")
    logged = evidence.log.connectors() if evidence.log else []
    known = next((_HOST_OF[name] for name in logged if name in _HOST_OF), None)
    if known is not None:
        return Observed(value=known, proof=f"log: Creating v1 connector with name: {', '.join(dict.fromkeys(logged))}")
    if evidence.config is None and evidence.log is None:
        return None
    return Observed(value=NONE, proof=f"/metrics has no {OFFLOAD}* family and no connector is named")


def _capacity(evidence: Evidence, connectors: dict[str, dict[str, Any]]) -> Observed | None:
    """What was allocated (0.33), else what was asked for: of each engine of the server (one for each attention group),
    times their number."""
    engines = max(1, len(evidence.metrics.find(CACHE_INFO)))
    times = f" x {engines} engines" if engines > 1 else ""
    size = evidence.metrics.label(OFFLOAD_INFO, "cpu_kv_cache_size_bytes")
    if size is not None and size.isdigit():
        return Observed(value=int(size) * engines, proof=f'{OFFLOAD_INFO}{{cpu_kv_cache_size_bytes="{size}"}}{times}')
    asked = connectors.get("OffloadingConnector", {}).get("cpu_bytes_to_use")
    if isinstance(asked, int | float):
        proof = f"/server_info kv_transfer_config.kv_connector_extra_config.cpu_bytes_to_use = {asked:.0f}"
        return Observed(value=int(asked) * engines, proof=proof + times)
    gib = evidence.label("kv_offloading_size")
    if gib is None:
        return Observed(value=None, proof=f"{CACHE_INFO} has no kv_offloading_size; only /server_info says it")
    return Observed(
        value=int(float(gib) * GIB) * engines, proof=f'{CACHE_INFO}{{kv_offloading_size="{gib}"}}, in GiB{times}'
    )


def _policy(evidence: Evidence) -> Observed:
    if evidence.metrics.has(SKIPPED):
        return Observed(value=SELECTIVE, proof=f"/metrics has {SKIPPED}")
    return Observed(value="write_through", proof=f"/metrics has no {SKIPPED}: nothing is filtered")


def _folder(connectors: dict[str, dict[str, Any]]) -> dict[str, Observed | None]:
    """The folder of a file tier; its last part is what tells it from folders with other bytes."""
    for extra in connectors.values():
        for tier in extra.get("secondary_tiers") or ():
            folder = tier.get("root_dir") if isinstance(tier, dict) else None
            if isinstance(folder, str):
                proof = f"/server_info kv_transfer_config secondary_tiers[].root_dir = {folder!r}"
                return {
                    "tiers.3.directory": Observed(value=folder, proof=proof),
                    "tiers.3.key": Observed(value=folder.rpartition("/")[2], proof=proof),
                }
    return {}


def _storage(evidence: Evidence, connectors: dict[str, dict[str, Any]]) -> Observed | None:
    for name, extra in connectors.items():
        kinds = [tier.get("type") for tier in extra.get("secondary_tiers") or () if isinstance(tier, dict)]
        word = next((_STORAGE_OF[kind] for kind in (name, *kinds) if kind in _STORAGE_OF), None)
        if word is not None:
            what = f"secondary tier {kinds[0]}" if kinds else name
            return Observed(value=word, proof=f"/server_info kv_transfer_config has {what}")
    if any(sample.name.startswith(TIERING) for sample in evidence.metrics.samples):
        proof = f"/metrics has the {TIERING}* families, which do not say what the tier is"
        return Observed(value=None, proof=proof)
    if evidence.config is None:
        return None
    return Observed(value=NONE, proof="/server_info kv_transfer_config has no storage tier")
