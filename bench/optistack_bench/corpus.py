"""Real text for prompts, as token ids of the served model: code and prose that every Python brings along."""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from optistack.errors import InputError
from optistack.verify.endpoint import Endpoint
from optistack_bench.chat import TASKS, UNKNOWN_CHARACTERS, WINDOW_CHARACTERS, ChatTexts, Measured
from optistack_bench.synthetic import MADE, Texts

DOMAINS = ("code", "prose", MADE)
CHUNK_CHARACTERS = 40_000
"""Text is tokenized in parts of this size; the seams between them do not matter, since ids are what is sent."""
CHARACTERS_A_TOKEN = 4


def read_texts(endpoint: Endpoint, domains: Sequence[str], *, longest_tokens: int) -> tuple[Texts, str]:
    """Token ids of ``domains`` by the server's own ``/tokenize``, and a sentence on what they are.

    ``longest_tokens`` is a session's length; four times as much text is taken, where there is as much. Raises
    InputError for an unknown domain, and when the server does not tokenize.
    """
    for domain in domains:
        if domain not in DOMAINS:
            raise InputError(f"There is no domain {domain!r}.", fix=f"Give some of {', '.join(DOMAINS)}.")
    real = [domain for domain in domains if domain != MADE]
    if not real:
        return Texts({}), "Prompts are random words: they say nothing about acceptance."
    model = endpoint.model()
    characters = _characters(longest_tokens)
    corpora = {domain: _tokenize(endpoint, model, source(domain)[:characters]) for domain in real}
    return Texts(corpora), _what_it_is(real)


def read_chat_texts(endpoint: Endpoint, domains: Sequence[str], *, longest_tokens: int) -> tuple[ChatTexts, str]:
    """Text of ``domains`` as it is, and a sentence on what it is. How long it is in tokens is asked of the server's
    ``/tokenize``, and guessed where it has none. Raises InputError for a domain that has no text."""
    for domain in domains:
        if domain not in TASKS:
            raise InputError(f"A chat has no domain {domain!r}.", fix=f"Give some of {', '.join(TASKS)}.")
    texts = {domain: source(domain)[: _characters(longest_tokens)] for domain in domains}
    try:
        model = endpoint.model()
        corpora = {
            domain: Measured(text, tuple(max(1, len(_tokenize(endpoint, model, one))) for one in _windows(text)))
            for domain, text in texts.items()
        }
        return ChatTexts(corpora), _what_it_is(domains)
    except InputError:
        guessed = {
            domain: Measured(text, tuple(len(window) / UNKNOWN_CHARACTERS for window in _windows(text)))
            for domain, text in texts.items()
        }
        return ChatTexts(guessed, counted=False), _what_it_is(domains)


def _windows(text: str) -> list[str]:
    return [text[at : at + WINDOW_CHARACTERS] for at in range(0, len(text), WINDOW_CHARACTERS)]


def _characters(longest_tokens: int) -> int:
    """How much text is taken: four sessions of that length, where there is as much."""
    return max(200_000, 4 * longest_tokens * CHARACTERS_A_TOKEN)


def _what_it_is(domains: Sequence[str]) -> str:
    version = platform.python_version()
    return f"Text of {' and '.join(domains)}: the sources and the manual that Python {version} brings along."


def source(domain: str) -> str:
    """``code``: the standard library's modules in the order of their names; ``prose``: the help texts of Python."""
    if domain == "prose":
        from pydoc_data.topics import topics

        return "\n\n".join(topics[name] for name in sorted(topics))
    folder = Path(sysconfig.get_path("stdlib"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in sorted(folder.glob("*.py")))


def _tokenize(endpoint: Endpoint, model: str, text: str) -> list[int]:
    ids: list[int] = []
    for at in range(0, len(text), CHUNK_CHARACTERS):
        part = text[at : at + CHUNK_CHARACTERS]
        body = {"model": model, "prompt": part, "add_special_tokens": False}
        response = endpoint.request("POST", "/tokenize", json=body)
        try:
            tokens = response.json()["tokens"] if response.status_code == 200 else None
        except (ValueError, LookupError, TypeError):
            tokens = None
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            if response.status_code == 200:
                raise InputError(
                    f"{endpoint.url}/tokenize answers, but not with a list of numbers under `tokens`, as vLLM and "
                    f"SGLang do: {response.text[:120].strip()!r}.",
                    fix="Is this the address of an engine, or of the router before one? A server of another kind is "
                    "measured with --domain made: prompts of random words, for which nothing is tokenized.",
                )
            raise _no_tokens(endpoint, f"{response.status_code} to /tokenize")
        if part.strip() and not tokens:
            raise _no_tokens(endpoint, "/tokenize gives none")
        ids += tokens
    return ids


def _no_tokens(endpoint: Endpoint, why: str) -> InputError:
    return InputError(
        f"{endpoint.url} does not turn text into tokens: {why}.", fix="Give --domain made: prompts of random words."
    )
