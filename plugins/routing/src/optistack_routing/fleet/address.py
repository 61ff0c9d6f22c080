"""Where a replica listens."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from optistack.errors import InputError

_HOST = re.compile(
    r"(?=.{1,253}\Z)[0-9a-z_-]{1,63}(?:\.[0-9a-z_-]{1,63})*\.?|(?=[^%]*:)[0-9a-f:.]{2,45}(?:%[0-9a-z_.-]+)?"
)
"""A name or an address, in the letters that DNS and a Host header have."""


@dataclass(frozen=True, slots=True)
class Address:
    """``url`` is its name everywhere: scheme, host and port, without a path."""

    url: str
    host: str
    port: int
    tls: bool

    @property
    def authority(self) -> bytes:
        return self.url.split("://", 1)[1].encode()


def read_address(text: str) -> Address:
    """The address in ``http://HOST:PORT``. Raises InputError."""
    fix = "Write http://HOST:PORT, or https:// for TLS."
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        raise InputError(f"{text!r} is not the URL of a replica.", fix=fix) from None
    known = parts.scheme in ("http", "https") and parts.hostname and _HOST.fullmatch(parts.hostname) and port != 0
    if not known or parts.hostname is None or parts.username or parts.query or parts.fragment:
        raise InputError(f"{text!r} is not the URL of a replica.", fix=fix)
    if parts.path not in ("", "/"):
        raise InputError(
            f"The replica {text!r} has a path, and requests keep the path that they came with.",
            fix="Leave the path out: clients write it.",
        )
    if "://" not in text and port is None:
        raise InputError(f"{text!r} is not the URL of a replica: it names no port.", fix=fix)
    tls = parts.scheme == "https"
    port = port or (443 if tls else 80)
    shown = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Address(f"{parts.scheme}://{shown}:{port}", parts.hostname, port, tls)


def is_own(address: Address, host: str, port: int) -> bool:
    """Whether requests to ``address`` would come back to the process that listens on ``host`` and ``port``."""
    if not port or address.port != port:
        return False
    there, here = _addressed(address.host), _addressed(host)
    if there == here:
        return True
    if here in ("0.0.0.0", "::"):  # every address of this machine
        return _is_of_this_machine(there)
    return False


def _addressed(host: str) -> str:
    return "127.0.0.1" if host.lower() == "localhost" else host.lower()


def _is_of_this_machine(host: str) -> bool:
    """Only an address that is its own can be bound to. A name is not looked up: it may be another one tomorrow."""
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True
