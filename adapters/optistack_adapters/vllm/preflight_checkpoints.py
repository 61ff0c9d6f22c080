"""The launch as it can be resolved on this machine: folders with a config alone where a checkpoint is not here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from optistack.facts.model import ModelFacts
from optistack.launch import FOLDER, PORT, Launch

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")
_BESIDE = ("hf_quant_config.json", "generation_config.json")


class Asked(BaseModel):
    """A launch to resolve: arguments without the program, variables, and whether the model's tokenizer is there."""

    model_config = ConfigDict(frozen=True)

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    tokenizer: bool = False


class Stage:
    """``launch`` with every checkpoint in a folder, made under ``scratch`` where it is not on this machine.

    ``options`` are those of the plan's plugins, one of which may name the config of a draft.

    ``has_tokenizer``  whether the model's tokenizer is there
    ``unresolved``     what had to be left out, one sentence each
    ``real_names``     folder by folder what it stands for
    """

    def __init__(
        self, model: ModelFacts, launch: Launch, scratch: Path, options: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.launch = launch
        self.options = tuple(options)
        self.scratch = scratch
        self.unresolved: list[str] = []
        self.real_names: dict[str, str] = {}
        self.model = model.path or self._folder(model.source, model.config, model.config_file.parent)
        self.has_tokenizer = any((self.model / name).exists() for name in TOKENIZERS)

    def asked(self) -> Asked:
        """The launch, to be resolved while ``scratch`` is there."""
        env = self.launch.env(port=8000, folder=str(self.scratch))
        return Asked(argv=tuple(self.argv()), env=env, tokenizer=self.has_tokenizer)

    def argv(self) -> list[str]:
        """The arguments without program and module. Weights are not loaded, so their format is ``dummy``."""
        words: list[str] = []
        for argument in self.launch.arguments:
            value = argument.value
            if argument.flag == "--model":
                value = str(self.model)
            elif argument.flag == "--revision":
                continue
            elif argument.flag == "--speculative-config" and value:
                value = self._speculative(value)
                if value is None:
                    continue
            words += [argument.flag] if value is None else [argument.flag, _filled(value, self.scratch)]
        if not self.launch.has("--load-format"):
            words += ["--load-format", "dummy"]
        return words

    def real(self, text: str) -> str:
        """``text`` with the names that the user knows."""
        for folder, name in self.real_names.items():
            text = text.replace(folder, name)
        return text

    def _speculative(self, value: str) -> str | None:
        parts = json.loads(value)
        draft = parts.get("model")
        if draft is None:
            return value
        folder = Path(draft)
        if not folder.is_absolute():
            config = self._draft_config(draft)
            if config is None:
                self.unresolved.append(f"speculative_config: the draft {draft} is not on this machine, nor its config")
                return None
            folder = self._folder(draft, json.loads(config.read_text(encoding="utf-8")), config.parent)
        return json.dumps({**parts, "model": str(folder)})

    def _draft_config(self, draft: str) -> Path | None:
        """The config that the plugin which names the draft was given beside it."""
        for options in self.options:
            if draft in options.values():
                for path in _paths(options):
                    config = path / "config.json" if path.is_dir() else path
                    if config.is_file() and config.suffix == ".json":
                        return config
        return None

    def _folder(self, name: str, config: dict[str, Any], beside: Path) -> Path:
        # vLLM reads words out of paths (a drafter's method, say), so the folder keeps the name's own.
        folder = self.scratch / "models" / name.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(_without_code(config)), encoding="utf-8")
        for other in _BESIDE:
            if (beside / other).is_file():
                shutil.copyfile(beside / other, folder / other)
        self.real_names[str(folder)] = name
        return folder


def _without_code(config: Any) -> Any:
    """``auto_map`` names Python files of the checkpoint, which are not here."""
    if not isinstance(config, dict):
        return config
    return {key: _without_code(value) for key, value in config.items() if key != "auto_map"}


def _paths(options: Mapping[str, Any]) -> Iterator[Path]:
    for value in options.values():
        if isinstance(value, str) and Path(value).is_absolute():
            yield Path(value)


def _filled(word: str, scratch: Path) -> str:
    return word.replace(PORT, "8000").replace(FOLDER, str(scratch))
