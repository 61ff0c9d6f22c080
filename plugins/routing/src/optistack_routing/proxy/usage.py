"""What an answer says of its tokens, read from its bytes as they pass."""

from __future__ import annotations

import re

from optistack_routing.policy.base import Usage

TAIL_BYTES = 4096

_USAGE = re.compile(rb'(?<!\\)"usage"\s*:\s*\{')
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
_OUTPUT = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d+)')
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*(\d+)')
_INPUT = re.compile(rb'"input_tokens"\s*:\s*(\d+)')


def read_usage(tail: bytes) -> Usage | None:
    """The last ``usage`` object in ``tail``: OpenAI's chat, completions and responses, and Anthropic's messages.

    Text that a model wrote cannot pass for one: its quotes are escaped inside of JSON strings. None where there is no
    such object, for instance in a stream whose client did not ask for ``stream_options.include_usage``.
    """
    found = None
    for found in _USAGE.finditer(tail):  # noqa: B007  # the last one is wanted
        pass
    if found is None:
        return None
    text = tail[found.end() :]
    cached, output = _number(_CACHED, text), _number(_OUTPUT, text)
    prompt = _number(_PROMPT, text)
    if prompt is None:
        prompt = _number(_INPUT, text)
        if prompt is not None and b"cache_read_input_tokens" in text:
            prompt += cached or 0  # Anthropic counts the cached ones apart
    if prompt is None and output is None:
        return None
    return Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)


def _number(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None
