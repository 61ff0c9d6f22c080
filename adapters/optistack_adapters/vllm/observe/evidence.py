"""Everything that is read from one engine, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optistack.verify.endpoint import Endpoint
from optistack.verify.metrics import Metrics
from optistack.verify.receipt import Observed
from optistack_adapters.vllm.observe.log import EngineLog

CACHE_INFO = "vllm:cache_config_info"


@dataclass(frozen=True)
class Evidence:
    """``config`` is the resolved configuration of ``/server_info``; None outside development mode."""

    metrics: Metrics
    config: dict[str, Any] | None
    models: dict[str, Any]
    version: str | None
    log: EngineLog | None

    def label(self, name: str) -> str | None:
        """A label of ``vllm:cache_config_info``; None when it is absent or the word None."""
        value = self.metrics.label(CACHE_INFO, name)
        return None if value in (None, "None") else value

    def setting(self, *path: str) -> Any:
        """A value of the resolved configuration, None when it is absent."""
        value: Any = self.config
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def from_label(self, name: str) -> Observed | None:
        """A whole number or switch from the cache's labels."""
        text = self.label(name)
        if text is None:
            return None
        proof = f'{CACHE_INFO}{{{name}="{text}"}}'
        if text in ("True", "False"):
            return Observed(value=text == "True", proof=proof)
        return Observed(value=int(text), proof=proof) if text.isdigit() else None

    def from_config(self, *path: str) -> Observed | None:
        """A number, word or switch from the resolved configuration."""
        value = self.setting(*path)
        if not isinstance(value, bool | int | float | str):
            return None
        return Observed(value=value, proof=f"/server_info {'.'.join(path)} = {value!r}")

    def from_log(self, name: str) -> str | None:
        """A field of the log's engine line; None for the word None."""
        value = self.log.engine_field(name) if self.log else None
        return None if value == "None" else value


def read_evidence(endpoint: Endpoint, log: str | None) -> Evidence:
    info = endpoint.get_json("/server_info?config_format=json") or {}
    config = info.get("vllm_config")
    return Evidence(
        metrics=endpoint.metrics(),
        config=config if isinstance(config, dict) else None,
        models=endpoint.listed(),
        version=(endpoint.get_json("/version") or {}).get("version"),
        log=EngineLog(log) if log else None,
    )
