"""Streams of completions over HTTP/1.1, timed where the bytes arrive: a connection is one asyncio protocol.

At 200 streams of 50 chunks a second a client library's time for a chunk would be most of what is measured, so a chunk
is not parsed: its end is found, its time is noted, and only what carries usage or an error is read.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import b64encode
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httptools

from optistack.errors import InputError
from optistack.verify.endpoint import without_login

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PLAIN = "!#$&'()*+,/:;=?@[]^`{|}"
"""What stands in a session's name as it is; anything else that is no letter or digit of ASCII is percent-encoded."""


@dataclass(slots=True)
class Answer:
    """One request's, as it came. Times are of the monotonic clock, in seconds; ``chunks_s`` has one for every chunk
    that carries tokens. ``connect_s`` is what it took to open a connection before it was sent, None on one that was
    open. ``error`` is "" for an answer that is whole, else what went wrong; ``detail`` the server's words.
    ``events`` are a chat's chunks with their times, which are still to be read: ``chunks_s`` is empty."""

    sent_s: float
    ended_s: float = 0.0
    connect_s: float | None = None
    chunks_s: list[float] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    error: str = ""
    detail: str = ""
    events: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def connection_failed(self) -> bool:
        return self.error in CONNECTION_ERRORS


REFUSED = "no connection"
CUT = "cut off"
TIMEOUT = "timeout"
ERROR_EVENT = "error event"
BAD_EVENT = "bad event"
CONNECTION_ERRORS = (REFUSED, CUT)


def _is_usage(usage: Any) -> bool:
    """Whether the counts in it are whole numbers of at least 0."""
    if not isinstance(usage, dict):
        return False
    details = usage.get("prompt_tokens_details") or {}
    if not isinstance(details, dict):
        return False
    counts = [usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens")]
    return all(count is None or (type(count) is int and count >= 0) for count in counts)


class Stream(asyncio.Protocol):
    """One connection; :meth:`ask` sends a request and returns its whole answer. Not for two requests at once.

    One that ``keeps`` puts each chunk into the answer's ``events`` instead of counting it, to be read afterwards."""

    def __init__(self, keeps: bool = False) -> None:
        self._keeps = keeps
        self.usable = True
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._answer = Answer(0.0)
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._finished = False
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._end(CUT, str(error or "the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(CUT, f"no HTTP: {error}")
            self.close()

    def on_message_begin(self) -> None:
        self._rest = b""

    def on_body(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        if self._parser.get_status_code() != 200:
            self._rest = data
            return
        for event in events:
            if event.startswith(b"data:"):
                self._event(event)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._end(f"HTTP {status}", self._rest[:300].decode(errors="replace"))
        elif not self._finished and not self._answer.error:
            self._end("no end", self._rest[:300].decode(errors="replace") or "the stream ended without [DONE]")
        else:
            self._end(self._answer.error, self._answer.detail)
        if not self._parser.should_keep_alive():
            self.close()

    def _event(self, event: bytes) -> None:
        chosen = b'"choices"' in event
        if b'"usage":{' in event or b'"usage": {' in event:
            self._usage(event[5:])
        elif event.startswith((b"data: [DONE]", b"data:[DONE]")):
            self._finished = True
            return
        elif not chosen and b'"error"' in event:
            self._answer.error, self._answer.detail = ERROR_EVENT, event[5:305].decode(errors="replace").strip()
            return
        elif not chosen and not self._keeps:
            self._odd(event[5:])
        if b'"choices":[]' in event or b'"choices": []' in event:
            return
        if self._keeps:
            self._answer.events.append((self._now, event[5:]))
        elif chosen:
            self._answer.chunks_s.append(self._now)

    def _odd(self, text: bytes) -> None:
        """An event without choices says nothing of tokens; one that is no JSON is the answer's error."""
        try:
            json.loads(text)
        except ValueError:
            self._answer.error, self._answer.detail = BAD_EVENT, text[:300].decode(errors="replace").strip()

    def _usage(self, text: bytes) -> None:
        try:
            usage = json.loads(text)["usage"]
        except (ValueError, TypeError, KeyError):
            usage = None
        if _is_usage(usage):
            self._answer.usage = usage
        else:
            said = text[:300].decode(errors="replace").strip()
            self._answer.error, self._answer.detail = "bad usage", f"no counts of tokens that can be read: {said}"

    def _end(self, error: str, detail: str) -> None:
        if self._done is not None and not self._done.done():
            self._answer.error, self._answer.detail = error, detail
            self._answer.ended_s = perf_counter()
            self._done.set_result(None)

    async def ask(self, request: bytes, timeout_s: float) -> Answer:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._finished = False
        self._done = asyncio.get_running_loop().create_future()
        answer = self._answer = Answer(perf_counter())
        self._transport.write(request)
        try:
            await asyncio.wait_for(self._done, timeout_s)
        except TimeoutError:
            answer.error, answer.ended_s = TIMEOUT, perf_counter()
            answer.detail = f"no end after {timeout_s:g} s"
            self.close()
        except asyncio.CancelledError:
            self.close()
            raise
        return answer

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()


@dataclass
class Client:
    """Asks one server for streams; idle connections are used again. ``fields`` go into every request's body.

    In a ``chat`` prompts are messages, and what is answered is kept. ``url`` has scheme, host and port, and perhaps a
    login. Raises InputError for another one.
    """

    url: str
    fields: dict[str, Any]
    session_header: str
    api_key: str | None = None
    timeout_s: float = 600.0
    chat: bool = False
    _idle: list[Stream] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{without_login(self.url)!r} is not a URL.", fix="Give it like http://127.0.0.1:8000.")
        self._host = parts.hostname
        # Reading the certificates takes longer than connecting: once, and not while answers arrive.
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/") + (CHAT if self.chat else COMPLETIONS)
        self._head = json.dumps({**self.fields, "stream": True, "stream_options": {"include_usage": True}})[:-1]
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        if parts.username is not None:  # goes before a key, as with httpx
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            key = f"Authorization: Basic {b64encode(login).decode()}\r\n"
        host = parts.netloc.rpartition("@")[2]
        self._headers = f"POST {self._path} HTTP/1.1\r\nHost: {host}\r\n{key}Content-Type: application/json\r\n"

    async def ask(self, prompt: bytes, *, max_tokens: int, session: str) -> Answer:
        """The answer to ``prompt``, a JSON array of token ids or messages. Never raises for what the server does."""
        name = b"messages" if self.chat else b"prompt"
        body = b'%b,"max_tokens":%d,"%b":%b}' % (self._head.encode(), max_tokens, name, prompt)
        head = (
            f"{self._headers}{self.session_header}: {quote(session, safe=PLAIN)}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        while True:
            started_s, reused = perf_counter(), bool(self._idle)
            try:
                stream = self._idle.pop() if reused else await self._connect()
            except OSError as error:
                return Answer(started_s, perf_counter(), error=REFUSED, detail=str(error))
            if not stream.usable:
                continue
            opened_s = perf_counter()
            answer = await stream.ask(head.encode() + body, self.timeout_s)
            answer.connect_s = None if reused else opened_s - started_s
            if answer.error == CUT and reused and not answer.chunks_s and not answer.events:
                continue  # a server may close what is idle at the moment it is used
            if stream.usable:
                self._idle.append(stream)
            return answer

    async def _connect(self) -> Stream:
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(lambda: Stream(self.chat), self._host, self._port, ssl=self._tls)
        return stream

    def close(self) -> None:
        for stream in self._idle:
            stream.close()
