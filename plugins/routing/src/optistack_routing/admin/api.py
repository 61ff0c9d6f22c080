"""The admin API: a few paths, JSON in and out."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from ipaddress import ip_address
from time import monotonic
from typing import Any
from urllib.parse import parse_qs

from optistack.errors import InputError
from optistack_routing.admin.metrics import Exposition
from optistack_routing.admin.state import describe
from optistack_routing.fleet.roster import Member, Roster, Source
from optistack_routing.http.head import Refused, RequestHead
from optistack_routing.http.server import Limits, ServerConnection
from optistack_routing.proxy.session import session_name

LIMITS = Limits(head_bytes=16 * 1024, body_bytes=64 * 1024, head_s=5.0, body_s=5.0, idle_s=60.0)


@dataclass
class Admin:
    """What the connections of the admin side share."""

    roster: Roster
    read: Callable[[], dict[str, Any]]
    metrics: Exposition
    api_keys: tuple[bytes, ...]
    drain_s: float

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        """Status and JSON. Raises Refused and InputError."""
        match method, path:
            case "GET", "/health":
                return 200, {"status": "ok"}
            case "GET", "/state":
                return 200, self.read()
            case "GET", "/replicas":
                return 200, {"replicas": [describe(member) for member in self.roster]}
            case "POST", "/replicas":
                member = self.roster.add(_text(body, "url"), Source.ADMIN, monotonic())
                return 200, describe(member)
            case "POST", "/replicas/drain":
                member = self.roster.get(_text(body, "url"))
                self.roster.drain(member, monotonic())
                return 200, describe(member)
            case "POST", "/replicas/resume":
                member = self.roster.get(_text(body, "url"))
                self.roster.resume(member, monotonic())
                return 200, describe(member)
            case "DELETE", "/replicas":
                return 200, self._remove(self.roster.get(query.get("url", "")), query)
            case "POST", "/sessions/finish":
                return 200, {"known": self._finish(_text(body, "session"))}
        if path in PATHS:
            raise Refused(405, f"{path} does not take {method}.")
        raise Refused(404, f"There is no {path}; there is {', '.join(PATHS)}.")

    def _finish(self, session: str) -> bool:
        return self.roster.ledger.policy.finish_session(session_name(session.encode()))

    def _remove(self, member: Member, query: dict[str, str]) -> dict[str, Any]:
        if query.get("now") == "1":
            self.roster.remove(member, monotonic())
        else:
            self.roster.drain(member, monotonic(), leave=True, within_s=self.drain_s)
        return {**describe(member), "left": member.name not in self.roster.members}


PATHS = ("/health", "/state", "/metrics", "/replicas", "/replicas/drain", "/replicas/resume", "/sessions/finish")


class AdminConnection(ServerConnection):
    limits = LIMITS

    def __init__(self, admin: Admin, connections: set[AdminConnection]) -> None:
        super().__init__()
        self._admin = admin
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._connections.discard(self)

    def admitted(self, head: RequestHead) -> None:
        keys = self._admin.api_keys
        if keys:
            scheme, _, given = head.by_name.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or sum(compare_digest(given, key) for key in keys) == 0:
                raise Refused(401, "The admin API key is missing or wrong: send Authorization: Bearer KEY.")
        elif b"origin" in head.by_name or not _is_here(head.by_name.get(b"host", b"")):
            # A page whose name is made to resolve to 127.0.0.1 speaks with its own Host, and any page with its Origin.
            raise Refused(
                400, "Without an admin API key the Host must be localhost or an IP address, and there is no Origin."
            )
        # A page in somebody's browser can send other kinds of bodies here without asking first.
        kind = head.by_name.get(b"content-type", b"").split(b";")[0].strip().lower()
        if head.method == b"POST" and kind != b"application/json":
            raise Refused(400, "The body must be application/json.")

    def handle(self, head: RequestHead, body: list[bytes], size_bytes: int) -> None:
        path, _, query = head.target.decode("latin-1").partition("?")
        words = {name: values[-1] for name, values in parse_qs(query).items()}
        method = "GET" if head.method == b"HEAD" else head.method.decode()
        if (method, path) == ("GET", "/metrics"):
            self.respond(200, self._admin.metrics.text(), kind=b"text/plain; version=0.0.4; charset=utf-8")
            return
        try:
            status, answer = self._admin.answer(method, path, words, b"".join(body))
        except InputError as error:
            self.refuse(404 if error.message.startswith("There is no replica") else 400, str(error), close=False)
        except Refused as refusal:
            self.refuse(refusal.status, refusal.reason, close=False)
        else:
            self.respond(status, json.dumps(answer).encode() + b"\n")


def _is_here(host: bytes) -> bool:
    name = host.rpartition(b":")[0] if re.search(rb":\d*\Z", host) else host
    name = name.strip(b"[]")
    if name.lower() in (b"localhost", b""):
        return True
    try:
        ip_address(name.decode("latin-1"))
    except ValueError:
        return False
    return True


def _text(body: bytes, key: str) -> str:
    try:
        value = json.loads(body)[key]
    except (ValueError, KeyError, TypeError, RecursionError):
        value = None
    if not isinstance(value, str) or not value or not value.isprintable():
        raise Refused(400, f'The body must be {{"{key}": "..."}}.')
    return value
