"""A client for raw payloads: streams as they come, several requests at once, cancellation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from optistack.errors import CheckFailedError, InputError
from optistack.verify.endpoint import Endpoint
from optistack_conformance.answers import generation, read_from

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
R = TypeVar("R")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
DONE = "[DONE]"


@dataclass
class Stream:
    """A stream that was read to its end: the events in order, and whether it ended with ``[DONE]``."""

    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for event in self.events for choice in event.get("choices") or []]

    @property
    def text(self) -> str:
        """The text of choice 0 put together, of a completion or of a chat."""
        return "".join(
            choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            for choice in self.choices
            if choice.get("index", 0) == 0
        )

    @property
    def pieces(self) -> int:
        """Events with some of the text or the reasoning of choice 0."""
        return sum(
            bool(choice.get("text") or delta.get("content") or reasoning_of(delta))
            for choice in self.choices
            if choice.get("index", 0) == 0
            for delta in [choice.get("delta") or {}]
        )

    @property
    def reasoning(self) -> str:
        """What choice 0 of a chat thinks aloud before it answers, where the server keeps that apart."""
        deltas = [choice.get("delta") or {} for choice in self.choices if choice.get("index", 0) == 0]
        return "".join(reasoning_of(delta) for delta in deltas)

    @property
    def finish_reasons(self) -> list[str]:
        return [choice["finish_reason"] for choice in self.choices if choice.get("finish_reason")]

    @property
    def usage(self) -> dict[str, Any] | None:
        """The last usage that the stream reported."""
        return next((event["usage"] for event in reversed(self.events) if event.get("usage")), None)


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Of a message or a delta. vLLM says ``reasoning`` since 0.12, others ``reasoning_content``."""
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


class Client(Endpoint):
    """An ``Endpoint`` whose payloads stay raw, so that a client library cannot tidy a fault away."""

    @classmethod
    def over(cls, endpoint: Endpoint) -> Client:
        """The same connection as a ``Client``; whoever opened ``endpoint`` closes it."""
        if isinstance(endpoint, Client):
            return endpoint
        client = cls.__new__(cls)
        client.url, client._client = endpoint.url, endpoint._client
        return client

    def __enter__(self) -> Self:
        return self

    @cached_property
    def _served(self) -> str:
        with read_from(self.url):
            return super().model()

    def model(self) -> str:
        return self._served

    def post(self, path: str, **fields: Any) -> httpx.Response:
        """POST a request body; ``model`` is filled in. Any status is returned."""
        return self.request("POST", path, json={"model": self.model(), **fields})

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        """The answer to a completion or a chat that must be answered.

        Raises CheckFailedError with the reason when it is not, or has no choices.
        """
        return generation(self.post(path, **fields))

    @contextmanager
    def open_stream(self, path: str, **fields: Any) -> Iterator[Iterator[str]]:
        """The data lines of a stream as they come. Leaving the block early closes the connection: a cancellation."""
        import httpx

        body = {"model": self.model(), **fields, "stream": True}
        try:
            with closing(self._send("POST", path, stream=True, json=body)) as response:
                if response.status_code != 200:
                    response.read()
                    raise CheckFailedError(f"{self.url}{path} answered {response.status_code}: {response.text[:300]}")
                yield (line[5:].strip() for line in response.iter_lines() if line.startswith("data:"))
        except httpx.TransportError as error:
            raise InputError(
                f"The stream from {self.url}{path} broke: {error}.", fix="Is the engine still up? Its log says more."
            ) from error

    def stream(self, path: str, **fields: Any) -> Stream:
        """A stream read to its end. Raises CheckFailedError when an event is no JSON object."""
        result = Stream()
        with self.open_stream(path, **fields) as lines:
            for line in lines:
                if line == DONE:
                    result.done = True
                    break
                result.events.append(self._event(line, path))
        return result

    def _event(self, line: str, path: str) -> dict[str, Any]:
        try:
            event = json.loads(line)
        except ValueError as error:
            raise CheckFailedError(f"{self.url}{path} streamed an event that is no JSON: {line[:200]!r}.") from error
        choices = (event.get("choices") or []) if isinstance(event, dict) else None
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise CheckFailedError(f"{self.url}{path} streamed an event that is none of the API's: {line[:200]!r}.")
        return dict(event)

    def parallel(self, work: Callable[[T], R], items: Sequence[T], concurrency: int) -> list[R]:
        """``work`` done for each item, ``concurrency`` at a time; results in the order of ``items``."""
        from concurrent.futures import ThreadPoolExecutor

        if concurrency == 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(work, items))
