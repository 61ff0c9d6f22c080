"""Lines of vLLM's log that prove something. The same in 0.26, 0.32 and 0.33 unless said."""

from __future__ import annotations

import ast
import re
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ENGINE = re.compile(r"Initializing a V1 LLM engine \(v(?P<version>[^)]+)\) with config: (?P<config>.*)")
_FIELD = r"(?:^|[ ,(]){name}=(?P<value>'[^']*'|[^,)\s]+)"
_SPECULATIVE = re.compile(r"speculative_config=SpeculativeConfig\((?P<fields>[^)]*)\)")
_ARGUMENTS = re.compile(r"non-default args: (?P<arguments>\{.*\})")
_ATTENTION = (
    re.compile(r"Using (?:AttentionBackendEnum\.)?(?P<name>[A-Z][A-Z0-9_]+) attention backend out of potential"),
    re.compile(r"Using (?:AttentionBackendEnum\.)?(?P<name>[A-Z][A-Z0-9_]+) backend\."),
)
_MLA_PREFILL = re.compile(r"Using (?P<name>[A-Z][A-Z0-9_]+) MLA prefill backend\.")
_MOE = re.compile(r"Using '?(?P<name>[A-Za-z0-9_]+)'? (?P<format>[A-Za-z0-9]+) MoE backend")
_UNIT_SCALES = re.compile(
    r"Using KV cache scaling factor 1\.0 for \w+|Found [kv]_scale in the checkpoint .* [kv]_scale is not loaded"
)
_LOADED = re.compile(r"Model loading took (?P<gib>-?[\d.]+) GiB(?: memory)? and ")  # 0.26 has both
_CONNECTOR = re.compile(r"Creating v1 connector with name: (?P<name>\w+)")


class EngineLog:
    """The log of one vLLM server; of its last start, where there are several in it."""

    def __init__(self, text: str) -> None:
        self._lines = _ANSI.sub("", text).splitlines()

    def engine_field(self, name: str) -> str | None:
        """A field of the configuration that the engine process started with, quotes taken off."""
        match = self._last(_ENGINE)
        if match is None:
            return None
        field = re.search(_FIELD.format(name=re.escape(name)), match["config"])
        return field["value"].strip("'") if field else None

    def engine_version(self) -> str | None:
        match = self._last(_ENGINE)
        return match["version"] if match else None

    def speculation(self) -> dict[str, str] | None:
        """``method``, ``model`` and ``num_spec_tokens`` of the engine process; None without speculation."""
        match = self._last(_ENGINE)
        found = _SPECULATIVE.search(match["config"]) if match else None
        if found is None:
            return None
        pairs = (pair.partition("=") for pair in found["fields"].split(", "))
        return {key: value.strip("'") for key, _, value in pairs}

    def arguments(self) -> dict[str, Any] | None:
        """What the server was told, as far as it differs from its defaults; None when the line is not there."""
        match = self._last(_ARGUMENTS)
        if match is None:
            return None
        try:
            told = ast.literal_eval(match["arguments"])
        except (ValueError, SyntaxError):
            return None
        return told if isinstance(told, dict) else None

    def attention_backends(self) -> list[str]:
        """Attention kernels in the order in which they were chosen: the target's, then the draft's."""
        names: dict[str, None] = {}
        for line in self._lines:
            for pattern in _ATTENTION:
                match = pattern.search(line)
                if match is not None:
                    names.setdefault(match["name"])
        return list(names)

    def mla_prefill_backend(self) -> str | None:
        match = self._last(_MLA_PREFILL)
        return match["name"] if match else None

    def moe_backend(self) -> tuple[str, str] | None:
        """Kernels of the experts and their format: ``("FLASHINFER_TRTLLM", "NvFp4")``."""
        match = self._last(_MOE)
        return (match["name"], match["format"]) if match else None

    def unit_scales(self) -> str | None:
        """The line that says that the checkpoint has no KV scales, or that they are left there."""
        match = self._last(_UNIT_SCALES)
        return match.group() if match else None

    def loaded_gib(self) -> list[str]:
        """What loading took of a GPU, as each rank that logs it says."""
        return [match["gib"] for line in self._lines if (match := _LOADED.search(line))]

    def connectors(self) -> list[str]:
        return [match["name"] for line in self._lines if (match := _CONNECTOR.search(line))]

    def _last(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return next((match for line in reversed(self._lines) if (match := pattern.search(line))), None)
