"""Where tokens come from: the target that wrote them, its chat template, and how they were sampled. No torch here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optistack.errors import InputError
from optistack.facts.safetensors import read_shards

_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class Provenance:
    """``target`` is the checkpoint's name, ``revision`` its fingerprint, ``template`` the hash of its chat template
    ("none" without one), ``sampling`` the parameters sent to the engine, ``engine`` what answered."""

    target: str
    revision: str
    template: str
    sampling: tuple[tuple[str, Any], ...]
    engine: str

    def metadata(self) -> dict[str, str]:
        return {
            "target": self.target,
            "revision": self.revision,
            "template": self.template,
            "sampling": json.dumps(dict(self.sampling), sort_keys=True),
            "engine": self.engine,
        }

    @classmethod
    def of(cls, metadata: dict[str, str]) -> Provenance:
        """Raises KeyError or ValueError when ``metadata`` is not what :meth:`metadata` gave."""
        return cls(
            target=metadata["target"],
            revision=metadata["revision"],
            template=metadata["template"],
            sampling=tuple(sorted(json.loads(metadata["sampling"]).items())),
            engine=metadata["engine"],
        )


def fingerprint(checkpoint: Path) -> str:
    """What identifies the weights in ``checkpoint``: sha256 over every tensor's name, dtype and shape and over 4 KiB at
    the start, in the middle and at the end of each file, so that it takes no time for a checkpoint of any size."""
    digest = hashlib.sha256()
    for shard in read_shards(checkpoint):
        for name in sorted(shard.tensors):
            tensor = shard.tensors[name]
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        data_bytes = sum(tensor.bytes for tensor in shard.tensors.values())
        with shard.file.open("rb") as file:
            size = file.seek(0, 2)
            for offset in (0, data_bytes // 2, max(0, data_bytes - _SAMPLE_BYTES)):
                file.seek(size - data_bytes + offset)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def template_hash(checkpoint: Path) -> str:
    """Hash of the chat template beside ``checkpoint``: chat_template.jinja, else the one in tokenizer_config.json."""
    template: Any = None
    try:
        if (checkpoint / "chat_template.jinja").is_file():
            template = (checkpoint / "chat_template.jinja").read_text()
        elif (checkpoint / "tokenizer_config.json").is_file():
            template = json.loads((checkpoint / "tokenizer_config.json").read_text()).get("chat_template")
    except (OSError, ValueError) as error:
        raise InputError(f"The chat template in {checkpoint} cannot be read: {error}.") from error
    if not template:
        return "none"
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
