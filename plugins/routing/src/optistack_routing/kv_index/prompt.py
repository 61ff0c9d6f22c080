"""From the body of a request to its prompt, as the engine will see it.

Chat messages are rendered with the checkpoint's own template in a sandbox, as both engines do it
(``apply_chat_template`` of transformers says which variables, filters and globals a template may expect).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from optistack.errors import InputError

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class Text:
    """A prompt as text. ``special``: with the tokenizer's own tokens around it (BOS); a template writes them itself."""

    text: str
    special: bool


Prompt = Text | Sequence[int]
"""A prompt as text, or as token ids where the client sent those."""


class PromptReader:
    """Reads bodies for the checkpoint in ``folder``.

    Raises InputError when the folder has no ``tokenizer.json`` (other tokenizers need code of the model's own).
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise InputError(
                f"{folder} has no tokenizer.json, which precise routing needs to know a prompt's tokens.",
                fix="Leave option precise of the routing plugin out.",
            )
        self.tokenizer = Tokenizer.from_file(str(file))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        configuration = _json(folder / "tokenizer_config.json")
        self._names = {name: _content(configuration.get(name)) for name in SPECIAL_TOKENS if configuration.get(name)}
        source = _template_source(folder, configuration)
        self._template = _environment().from_string(source) if source else None
        self.marks = tuple(mark for mark in self._boundaries() if mark in source)
        """Texts of tokens that the template writes and that stand alone whatever is around them: a prompt may be cut
        before them."""

    def read(self, body: bytes) -> Prompt | None:
        """The prompt of a (chat) completion's ``body``; None when it has none that can be read here, such as images."""
        try:
            request = msgspec.json.decode(body)
            if not isinstance(request, dict):
                return None
            if "messages" in request:
                return self._render(request)
            prompt = request.get("prompt")
        except (msgspec.MsgspecError, jinja2.TemplateError, ValueError, TypeError, LookupError, AttributeError):
            return None
        if isinstance(prompt, str):
            return Text(prompt, special=bool(request.get("add_special_tokens", True)))
        ids = isinstance(prompt, list) and bool(prompt) and all(isinstance(token, int) for token in prompt)
        return prompt if ids else None

    def _render(self, request: dict[str, Any]) -> Text | None:
        if self._template is None or request.get("chat_template"):
            return None
        messages = [_message(message) for message in request["messages"]]
        if any(message is None for message in messages):
            return None
        variables = {
            "messages": messages,
            "tools": request.get("tools") or None,
            "documents": request.get("documents"),
            "add_generation_prompt": request.get("add_generation_prompt", True),
            **self._names,
            **(request.get("chat_template_kwargs") or {}),
        }
        return Text(self._template.render(**variables), special=False)

    def _boundaries(self) -> list[str]:
        added = self.tokenizer.get_added_tokens_decoder().values()
        return [
            token.content
            for token in added
            if not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        ]


def _message(message: dict[str, Any]) -> dict[str, Any] | None:
    """``message`` as templates expect it: text in one piece, arguments of tool calls as an object."""
    content = message.get("content")
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            return None
        content = "\n".join(part["text"] for part in content)
    calls = message.get("tool_calls")
    changed = {"content": content} if "content" in message else {}
    if calls:
        changed["tool_calls"] = [_call(call) for call in calls]
    return {**message, **changed}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = msgspec.json.decode(arguments or "{}")
    return {**call, "function": {**function, "arguments": arguments}}


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)


def _template_source(folder: Path, configuration: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = configuration.get("chat_template") or ""
    if isinstance(template, list):  # several, by name
        template = next((entry["template"] for entry in template if entry["name"] == "default"), "")
    return str(template)


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}
