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
    _require_pem(cert, b"CERTIFICATE-----", "certificate")
    _require_pem(key, b"PRIVATE KEY-----", "private key")
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InputError(f"{key} is not the key of {cert}.", fix="Give the two that belong together.") from None
        fix = "A key without a password is needed, and both as PEM files."
        raise InputError(f"{cert} and {key} cannot be used: {error.reason or error}.", fix=fix) from None
    return context


def _require_pem(path: Path, mark: bytes, kind: str) -> None:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.", fix="Check the path and its permissions.") from None
    if mark not in content:
        raise InputError(f"{path} holds no {kind}.", fix=f"Give a PEM file with a {kind} in it.")


def _no_password() -> str:
    """Otherwise OpenSSL would ask for one on the terminal."""
    return ""


def client_tls(ca: Path | None) -> ClientTLS:
    """For replicas with https://; ``ca`` instead of the system's certificates. Raises InputError."""
    if ca is not None:
        _client_context(ca)
    return partial(_client_context, ca)


@cache
def _client_context(ca: Path | None) -> ssl.SSLContext:
    # Reading the system's certificates takes longer than all the rest of a start.
    if ca is not None:
        _require_pem(ca, b"CERTIFICATE-----", "certificate")
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
    except ssl.SSLError as error:
        raise InputError(f"{ca} cannot be read: {error.reason or error}.", fix="Give a PEM file.") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
