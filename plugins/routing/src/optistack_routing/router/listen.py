"""Sockets and TLS of the router."""

from __future__ import annotations

import socket
import ssl
from functools import cache, partial
from pathlib import Path

from optistack.errors import InputError
from optistack_routing.http.client import ClientTLS


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening TCP socket. ``shared``: other processes listen there too. Raises InputError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            listener.listen(4096)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise InputError(
            f"The router cannot listen on {host}:{port}: {error.strerror or error}.",
            fix="Choose another address or port, or stop what listens there.",
        ) from None
    return listener


def listen_alike(host: str, port: int, count: int) -> list[socket.socket]:
    """``count`` sockets at one address; the kernel spreads connections over them. Raises InputError."""
    first = listen(host, port, shared=count > 1)
    return [first, *(listen(host, first.getsockname()[1], shared=True) for _ in range(count - 1))]


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Raises InputError for files that are no certificate and its key."""
    if cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"{cert} and {key} are no certificate and its key: {error}.", fix="Both are PEM files."
        ) from None
    return context


def client_tls(ca: Path | None) -> ClientTLS:
    """For replicas with https://; ``ca`` instead of the system's certificates. Raises InputError."""
    if ca is not None:
        _client_context(ca)
    return partial(_client_context, ca)


@cache
def _client_context(ca: Path | None) -> ssl.SSLContext:
    # Reading the system's certificates takes longer than all the rest of a start.
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{ca} holds no certificates: {error}.", fix="It is a PEM file.") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
