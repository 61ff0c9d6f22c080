"""Answers of a server, held to the shape that the API gives them: what has another shape gets a sentence, not a
traceback. Every sentence names the URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from optistack.errors import CheckFailedError, NoEngineError
from optistack.verify.endpoint import ENGINES_ADDRESS

if TYPE_CHECKING:
    import httpx


class NotScoredError(CheckFailedError):
    """The engine does not give what scoring needs (token ids, prompt logprobs): nothing is proven either way."""


SHOWN_CHARACTERS = 300
MISSHAPEN = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What Python raises where an answer is not what was read from it."""


def json_object(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer with status 200.

    Raises CheckFailedError for another status, with what the server says of it, and for another kind of JSON;
    NoEngineError when it is none.
    """
    where = str(response.request.url)
    if response.status_code != 200:
        raise CheckFailedError(f"{where} answered {response.status_code}: {response.text[:SHOWN_CHARACTERS]}")
    try:
        body = response.json()
    except ValueError as error:
        kind = response.headers.get("content-type", "no content type")
        raise NoEngineError(
            f"{where} answered no JSON, but {kind}: {response.text[:80]!r}.",
            fix="Give the URL of a server that answers like OpenAI's, streaming only when asked to.",
        ) from error
    if not isinstance(body, dict):
        raise CheckFailedError(f"{where} answered {_kind(body)} where a JSON object is due.")
    return body


def generation(response: httpx.Response) -> dict[str, Any]:
    """The answer to a completion or a chat: a JSON object whose ``choices`` are objects, one at least."""
    body = json_object(response)
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        raise CheckFailedError(f"{response.request.url} answered without choices: {str(body)[:SHOWN_CHARACTERS]}")
    return body


def sglang_answer(response: httpx.Response) -> dict[str, Any]:
    """The answer of SGLang's ``/generate``: a JSON object with an object ``meta_info``."""
    body = json_object(response)
    if not isinstance(body.get("meta_info"), dict):
        raise CheckFailedError(f"{response.request.url} answered without meta_info: {str(body)[:SHOWN_CHARACTERS]}")
    return body


def sglang_scores(response: httpx.Response) -> dict[str, Any]:
    """As ``sglang_answer``, of a request for log probabilities.

    NotScoredError where SGLang says that it supports none as it runs: 0.5.17 under DFLASH, 0.5.21 under UNO and with
    beam search, each with status 400. Any other refusal is an error of the engine.
    """
    if response.status_code == 400 and "logprob" in response.text and "not support" in response.text:
        raise NotScoredError(
            f"{response.request.url} refuses log probabilities, so that nothing can be scored: {message_of(response)}"
        )
    return sglang_answer(response)


def prompt_tokens(body: dict[str, Any], where: str) -> int:
    """``usage.prompt_tokens`` of ``body``. Raises CheckFailedError when it is not there."""
    usage = body.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(count, int):
        raise CheckFailedError(f"{where} answered without usage.prompt_tokens.")
    return count


@contextmanager
def read_from(where: str) -> Iterator[None]:
    """Around the reading of an answer of ``where``: what is not there, or of another type, is a NoEngineError."""
    try:
        yield
    except MISSHAPEN as error:
        raise NoEngineError(misshapen(error, where), fix=ENGINES_ADDRESS) from error


def misshapen(error: BaseException, where: str) -> str:
    """The sentence for one of ``MISSHAPEN`` that came of reading an answer of ``where``."""
    what = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}, {error}"
    return f"{where} gave an answer of another shape than the API's: {what}."


def message_of(response: httpx.Response) -> str:
    """What an error says in words, where it has the API's shape; else as it came."""
    try:
        said = response.json()["error"]["message"]
    except MISSHAPEN:
        said = response.text
    return str(said)[:SHOWN_CHARACTERS]


def _kind(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
