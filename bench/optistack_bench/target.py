"""What is measured: where requests go, and whose counters are read."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from optistack.errors import InputError
from optistack.verify.endpoint import without_login


def _places(url: str) -> Iterator[tuple[object, ...]]:
    """Address, port and path of everything that ``url`` may lead to; nothing for one that leads nowhere."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return
    yield from ((*address[:2], parts.path.rstrip("/")) for *_, address in found)


@dataclass(frozen=True)
class Target:
    """``url`` is where requests go, ``engines`` whose metrics are read (the replicas behind a router, or itself).

    ``spread`` are replicas that nothing stands before: users are spread over them, in an open loop sessions, and a
    session stays where it began.
    """

    name: str
    url: str
    engines: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    gpus: int = 1
    plan_hash: str | None = None
    planned_kv_tokens: int | None = None

    @property
    def shown_url(self) -> str:
        """``url`` without a login."""
        return without_login(self.url)

    def check_engines(self) -> None:
        """Raise InputError where two of the engines listen at one address: each would be counted twice."""
        places: dict[tuple[object, ...], str] = {}
        for url in self.engines:
            for place in set(_places(url)):
                if place in places:
                    one, other = map(without_login, (places[place], url))
                    raise InputError(f"--engine {one} and {other} are one engine.", fix="Name each engine once.")
                places[place] = url

    @property
    def urls(self) -> tuple[str, ...]:
        """Where requests go."""
        return self.spread or (self.url,)

    @property
    def rule(self) -> str:
        """What has to be said about where they go."""
        if len(self.spread) < 2:
            return ""
        return (
            f"{len(self.spread)} replicas without a router: users, and sessions of an open loop, take turns, and stay "
            "where they began."
        )
