"""Follows the event streams of the replicas, in a thread of its own.

An engine publishes on a PUB socket, numbers its messages from 0, and keeps the last ones for whoever asks its ROUTER
socket for those from a number on. A stream is followed from its beginning where that is still kept. Where messages are
missing they are asked for; where they cannot be had the replica's blocks are forgotten, since an eviction may be among
them and a hit that is not there costs more than one that is not seen. A connection that breaks means a restart: the
blocks are forgotten and the stream is read anew.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from optistack_routing.kv_index.events import decode
from optistack_routing.kv_index.index import BlockIndex

log = logging.getLogger(__name__)

POLL_MS = 100
REPLAY_TIMEOUT_S = 5.0
PENDING_MESSAGES = 10_000
"""Live messages that are held back during a replay; further ones are a gap again."""
MESSAGES_AT_ONCE = 200
"""Of one replica, before the others have their turn."""
_END = -1


@dataclass(slots=True)
class Counts:
    messages: int = 0
    gaps: int = 0
    replays: int = 0
    restarts: int = 0
    malformed: int = 0


@dataclass(slots=True)
class _Stream:
    """One replica's stream.

    ``expected``  number of the next message; None before the first
    ``asked``     number from which the last replay was asked for
    ``pending``   live messages that wait for the end of a replay
    """

    replica: str
    events: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    replay: zmq.Socket[bytes] | None
    expected: int | None = None
    asked: int = -1
    replaying_until_s: float | None = None
    pending: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=PENDING_MESSAGES))


class Subscriber:
    """Keeps ``index`` true to the replicas that :meth:`follow` names. Close it, or use it as a context manager."""

    def __init__(self, index: BlockIndex) -> None:
        self.index = index
        self.counts = Counts()
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._streams: dict[str, _Stream] = {}
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def follow(self, replica: str, events: str, replay: str | None = None) -> None:
        """Subscribe to ``replica``, which publishes at ``events`` and replays at ``replay`` (ZeroMQ addresses)."""
        self.index.join(replica)
        self._todo.put(lambda: self._open(replica, events, replay))

    def drop(self, replica: str) -> None:
        """Forget ``replica``."""
        self._todo.put(lambda: self._close(replica))

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while self._handle_commands():
                self._poll()
        finally:
            for replica in list(self._streams):
                self._close(replica)
            self._context.term()

    def _handle_commands(self) -> bool:
        while True:
            try:
                command = self._todo.get_nowait()
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _poll(self) -> None:
        poller = zmq.Poller()
        for stream in self._streams.values():
            for one in (stream.events, stream.monitor, stream.replay):
                if one is not None:
                    poller.register(one, zmq.POLLIN)
        if not self._streams:
            threading.Event().wait(POLL_MS / 1000)
            return
        poller.poll(POLL_MS)
        for stream in list(self._streams.values()):
            self._read_monitor(stream)
            self._read_replay(stream)
            self._read_events(stream)
            if stream.replaying_until_s is not None and time.monotonic() > stream.replaying_until_s:
                log.warning("%s does not replay its KV events: its blocks are forgotten.", stream.replica)
                self._lose(stream)
                self._end_replay(stream)

    def _open(self, replica: str, events: str, replay: str | None) -> None:
        self._close(replica)
        self.index.join(replica)
        subscription = self._socket(zmq.SUB)
        subscription.set_hwm(0)  # messages that we drop are a gap; they are small and the index is the bound
        subscription.subscribe(b"")
        monitor = subscription.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
        stream = _Stream(replica, subscription, monitor, self._dealer(replay))
        stream.events.connect(events)
        self._streams[replica] = stream

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        return socket

    def _dealer(self, address: str | None) -> zmq.Socket[bytes] | None:
        if address is None:
            return None
        dealer = self._socket(zmq.DEALER)
        dealer.set_hwm(0)  # a whole replay fits
        dealer.connect(address)
        return dealer

    def _close(self, replica: str) -> None:
        stream = self._streams.pop(replica, None)
        if stream is not None:
            stream.events.disable_monitor()
            for one in (stream.monitor, stream.events, stream.replay):
                if one is not None:
                    one.close(linger=0)
            self.index.leave(replica)

    def _read_monitor(self, stream: _Stream) -> None:
        while stream.monitor.poll(0):
            event: dict[str, Any] = recv_monitor_message(stream.monitor)  # type: ignore[assignment]  # not awaitable here
            if event["event"] == zmq.EVENT_CONNECTED:
                self._ask_for_replay(stream, 0)
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self.counts.restarts += 1
                self._lose(stream)
                self._end_replay(stream)

    def _read_events(self, stream: _Stream) -> None:
        for _ in range(MESSAGES_AT_ONCE):
            try:
                frames = stream.events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            number = _number(frames)
            if number is None:
                self.counts.malformed += 1
            elif stream.replaying_until_s is not None:
                stream.pending.append((number, frames[-1]))
            else:
                self._take_live(stream, number, frames[-1])

    def _read_replay(self, stream: _Stream) -> None:
        while stream.replay is not None:
            try:
                frames = stream.replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            number = _number(frames)
            if stream.replaying_until_s is None or number is None:
                continue  # the rest of a replay that was given up
            if number == _END:
                self._end_replay(stream)
                continue
            stream.replaying_until_s = time.monotonic() + REPLAY_TIMEOUT_S
            if stream.expected is not None and number > stream.expected:
                self._lose(stream)  # it no longer has all of them
            if stream.expected is None or number >= stream.expected:
                self._apply(stream, number, frames[-1])

    def _take_live(self, stream: _Stream, number: int, payload: bytes) -> None:
        expected = stream.expected
        if expected is not None and number < expected:
            return  # it came with a replay already
        if expected is not None and number > expected:
            self.counts.gaps += 1
            # A replay that did not close the gap will not close it the second time.
            if expected != stream.asked and self._ask_for_replay(stream, expected):
                stream.pending.append((number, payload))
                return
            self._lose(stream)
        self._apply(stream, number, payload)

    def _apply(self, stream: _Stream, number: int, payload: bytes) -> None:
        stream.expected = number + 1
        self.counts.messages += 1
        try:
            self.index.apply(stream.replica, decode(payload))
        except (ValueError, TypeError, OverflowError) as error:
            self.counts.malformed += 1
            log.warning("%s sent what cannot be read: %s. Its blocks are forgotten.", stream.replica, error)
            self.index.clear(stream.replica)

    def _ask_for_replay(self, stream: _Stream, start: int) -> bool:
        """Ask for the messages from ``start`` on; False when there is nobody to ask."""
        if stream.replay is None:
            return False
        stream.replay.send_multipart([b"", start.to_bytes(8, "big")])
        stream.asked, stream.replaying_until_s = start, time.monotonic() + REPLAY_TIMEOUT_S
        self.counts.replays += 1
        return True

    def _end_replay(self, stream: _Stream) -> None:
        stream.replaying_until_s = None
        pending = list(stream.pending)
        stream.pending.clear()
        for number, payload in pending:
            if stream.replaying_until_s is not None:  # there is a gap again
                stream.pending.append((number, payload))
            else:
                self._take_live(stream, number, payload)

    def _lose(self, stream: _Stream) -> None:
        stream.expected, stream.asked = None, -1
        self.index.clear(stream.replica)


def _number(frames: list[bytes]) -> int | None:
    """The number of a message: its last frame but one, whether the topic is sent along (vLLM) or not (SGLang)."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    return int.from_bytes(frames[-2], "big", signed=True)
