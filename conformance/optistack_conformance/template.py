"""The chat template and tokenizer of a checkpoint, read here and not by the engine: the oracle for prompt tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from optistack.errors import InputError

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from tokenizers import Tokenizer

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """The template in ``folder``: ``chat_template.jinja``, or the field of tokenizer_config.json.

    Raises InputError when the folder has no tokenizer.json or no template, or its tokenizer_config.json is no JSON
    object.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "tokenizer.json").is_file():
            raise InputError(f"{folder} has no tokenizer.json.", fix="Give the checkpoint that the server runs.")
        config = folder / "tokenizer_config.json"
        try:
            self.config: dict[str, Any] = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        except ValueError as error:
            raise InputError(
                f"{config} is no JSON: {error}.", fix="Give the checkpoint that the server runs."
            ) from error
        if not isinstance(self.config, dict):
            raise InputError(f"{config} is no JSON object.", fix="Give the checkpoint that the server runs.")
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.is_file() else self.config.get("chat_template")
        if not isinstance(source, str):
            raise InputError(f"{folder} has no chat template.", fix="Leave the checkpoint out, or add the template.")
        self.source = source

    def check(self) -> None:
        """Raise InputError where the template cannot be parsed, or the tokenizer cannot be loaded."""
        from jinja2 import TemplateSyntaxError

        try:
            self._environment.parse(self.source)
        except TemplateSyntaxError as error:
            raise InputError(
                f"The chat template of {self.folder} is none: line {error.lineno}, {error.message}",
                fix="Leave the checkpoint out, or mend the template.",
            ) from error
        self._tokenizer.get_vocab_size()  # loads it

    @property
    def hash(self) -> str:
        """sha256 of the template's text."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The prompt that ``messages`` make, with the opening of the answer."""
        special = {name: _text(self.config.get(name)) for name in SPECIAL}
        template = self._environment.from_string(self.source)
        return template.render(messages=list(messages), add_generation_prompt=True, **special)

    def count(self, messages: Sequence[dict[str, Any]]) -> int:
        """Tokens of the prompt that ``messages`` make."""
        return len(self._tokenizer.encode(self.render(messages), add_special_tokens=False).ids)

    @property
    def _environment(self) -> ImmutableSandboxedEnvironment:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = _raise
        return environment

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        file = self.folder / "tokenizer.json"
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises nothing more particular
            raise InputError(
                f"{file} cannot be loaded: {str(error).rstrip('.')}.", fix="Give the checkpoint that the server runs."
            ) from error


def _text(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _raise(message: str) -> NoReturn:
    raise InputError(
        f"The chat template refuses the messages: {message}.", fix="Give the checkpoint that the server runs, or none."
    )
