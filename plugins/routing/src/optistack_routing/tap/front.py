"""A client's connection of which some requests are recorded."""

from __future__ import annotations

from typing import Any

from optistack_routing.http.head import RequestHead
from optistack_routing.http.writing import Writer
from optistack_routing.proxy.front import Front
from optistack_routing.proxy.settings import Settings
from optistack_routing.tap.answers import PATHS, asked, read_exchange, with_ids
from optistack_routing.tap.recordings import Recordings

MAX_REQUEST_BYTES = 4 * 1024 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024
UNWANTED = b"x-optistack-no-recording"


class CopyingWriter(Writer):
    """``copy`` gets what is written, when somebody wants it; None again when that is more than can be kept."""

    __slots__ = ("_copied_bytes", "copy")

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer.transport)
        self.copy: list[bytes] | None = None
        self._copied_bytes = 0

    def begin(self) -> None:
        self.copy, self._copied_bytes = [], 0

    def write(self, data: bytes) -> None:
        if self.copy is not None:
            self._keep([data])
        super().write(data)

    def writelines(self, parts: list[bytes]) -> None:
        if self.copy is not None:
            self._keep(parts)
        super().writelines(parts)

    def _keep(self, parts: list[bytes]) -> None:
        self._copied_bytes += sum(map(len, parts))
        if self._copied_bytes > MAX_ANSWER_BYTES:
            self.copy = None
        elif self.copy is not None:
            self.copy.extend(parts)


class TappedFront(Front):
    """Asks for token ids in a share of the requests, and copies those answers on their way.

    Such a request gets one more field, and its answer the fields that the engine adds for it: the one case in which
    bodies do not pass as they are.
    """

    def __init__(self, settings: Settings, recordings: Recordings) -> None:
        self._copying: CopyingWriter | None = None
        self._recorded: dict[str, Any] | None = None
        super().__init__(settings)
        self._recordings = recordings

    # Whatever sets the writer, before the connection is made or then: all that is written goes through the copying one.

    @property
    def writer(self) -> Writer:
        return self._copying  # type: ignore[return-value]  # None until there is a connection, as in the base

    @writer.setter
    def writer(self, writer: Writer | None) -> None:
        self._copying = None if writer is None else CopyingWriter(writer)

    def handle(self, head: RequestHead, body: list[bytes], size_bytes: int) -> None:
        self._drop()
        may = head.method == b"POST" and head.target in PATHS and size_bytes <= MAX_REQUEST_BYTES
        if may and UNWANTED not in head.by_name and self._recordings.wants_one():
            whole = b"".join(body)
            request = asked(whole)
            if request is not None:
                if "return_token_ids" not in request:
                    whole = with_ids(whole)
                self._recorded = request
                if self._copying is not None:
                    self._copying.begin()
                body, size_bytes = [whole], len(whole)
        super().handle(head, body, size_bytes)

    def answered(self, keep_alive: bool) -> None:
        request, copying = self._recorded, self._copying
        copy = copying.copy if copying is not None else None
        self._drop()
        if request is not None and copy is not None:
            exchange = read_exchange(b"".join(copy))
            if exchange is not None:
                self._recordings.keep(request, exchange)
        super().answered(keep_alive)

    def connection_lost(self, error: Exception | None) -> None:
        self._drop()
        super().connection_lost(error)

    def _drop(self) -> None:
        self._recorded = None
        if self._copying is not None:
            self._copying.copy = None
