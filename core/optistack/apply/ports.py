"""Ports: find one that is free, and say who holds one that is not."""

from __future__ import annotations

import errno
import socket
from contextlib import closing

from optistack.errors import InputError


def free_port(host: str = "127.0.0.1") -> int:
    """A port of ``host`` that nobody listens on now. Raises InputError where one cannot listen on ``host``."""
    try:
        with closing(_listener(host)) as listener:
            listener.bind((host, 0))
            port: int = listener.getsockname()[1]
            return port
    except OSError as error:
        raise _cannot_listen(host, error) from None


def require_free(host: str, port: int) -> None:
    """Raises InputError, with the process that holds it where that can be seen, when ``port`` cannot be listened on."""
    try:
        with closing(_listener(host)) as listener:
            listener.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = f"Stop it or choose another port; {free_port(host)} is free."
            raise InputError(f"Port {port} is in use{_holder(port)}.", fix=fix) from None
        raise _cannot_listen(f"{host} port {port}", error) from None


def _cannot_listen(where: str, error: OSError) -> InputError:
    return InputError(
        f"Cannot listen on {where}: {error.strerror or error}.",
        fix="serving.host is an address or a name of this machine, such as 127.0.0.1.",
    )


def _listener(host: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    # As servers do: connections of an earlier server that linger in TIME_WAIT do not count.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return listener


def _holder(port: int) -> str:
    """`` by NAME (pid PID)``, or nothing when the holder is another user's."""
    import psutil

    for connection in psutil.net_connections(kind="tcp"):
        if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
            if connection.pid is None:
                continue
            try:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                continue
    return ""
