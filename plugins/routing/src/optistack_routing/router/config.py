"""What a router can be told, in a file or on the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from optistack.errors import InputError
from optistack.stack.document import Document, Steps, parse_document
from optistack.stack.problems import problems_of
from optistack_routing.fleet.address import Address, is_own, read_address
from optistack_routing.proxy.session import SESSION_HEADERS
from optistack_routing.proxy.settings import PATHS
from optistack_routing.tap.options import Tap

KEY_VARIABLE = "OPTISTACK_ROUTE_API_KEY"
ADMIN_KEY_VARIABLE = "OPTISTACK_ROUTE_ADMIN_KEY"
UPSTREAM_KEY_VARIABLE = "OPTISTACK_ROUTE_UPSTREAM_KEY"

OPTIONS = {"replicas": "--replica", "session_headers": "--session-header"}
"""Options of the command line that are not called like their keys."""


class Precise(BaseModel):
    """Precise mode: ``events`` are the ZeroMQ addresses of each replica's KV events and of their replay.

    ``checkpoint``     folder with the tokenizer and the chat template
    ``page_tokens``    of a KV page
    ``dropped_pages``  pages at the end of a hit that the engine computes again under its kind of speculation
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoint: Path
    page_tokens: int = Field(ge=1)
    dropped_pages: int = Field(0, ge=0)
    events: dict[str, tuple[str, str | None]]


class Config(BaseModel):
    """Every option of the router; keys of the YAML file. Times are in seconds, sizes in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: tuple[str, ...] = ()
    replica_file: Path | None = None
    replica_dns: str | None = None
    discovery_every_s: float = Field(2.0, gt=0)

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(8081, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=64)

    policy: str = "kv-aware"
    parameters: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    precise: Precise | None = None
    session_headers: tuple[str, ...] = SESSION_HEADERS
    bytes_a_token: float = Field(4.0, gt=0)
    paths: tuple[str, ...] = PATHS
    name_replica: bool = False

    retries: int = Field(2, ge=0, le=10)
    retry_statuses: tuple[int, ...] = (502, 503, 504)
    connect_s: float = Field(2.0, gt=0)
    first_byte_s: float = Field(600.0, gt=0)
    idle_s: float = Field(300.0, gt=0)
    queue_s: float = Field(10.0, ge=0)
    queue_length: int = Field(1000, ge=0)
    drain_s: float = Field(600.0, ge=0)

    head_bytes: int = Field(64 * 1024, ge=1024)
    body_bytes: int = Field(64 * 1024 * 1024, ge=1024)
    head_s: float = Field(10.0, gt=0)
    body_s: float = Field(120.0, gt=0)
    keep_alive_s: float = Field(75.0, gt=0)
    upstream_keep_alive_s: float = Field(4.0, ge=0)

    health_path: str = "/health"
    health_every_s: float = Field(5.0, gt=0)
    health_timeout_s: float = Field(5.0, gt=0)
    health_failures: int = Field(2, ge=1)
    breaker_failures: int = Field(3, ge=1)
    breaker_open_s: float = Field(2.0, gt=0)
    breaker_longest_s: float = Field(60.0, gt=0)
    kv_every_s: float = Field(5.0, ge=0)

    tls_cert: Path | None = None
    tls_key: Path | None = None
    api_key_file: Path | None = None
    admin_tls_cert: Path | None = None
    admin_tls_key: Path | None = None
    admin_api_key_file: Path | None = None
    upstream_ca: Path | None = None
    upstream_api_key_file: Path | None = None

    access_log: str | None = None
    tap: Tap | None = None

    @field_validator("session_headers")
    @classmethod
    def _header_names(cls, headers: tuple[str, ...]) -> tuple[str, ...]:
        from optistack_routing.options import header_of_a_session

        return tuple(header_of_a_session(header) for header in headers)

    @field_validator("paths")
    @classmethod
    def _paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/"):
                raise ValueError(f"the path {path!r} does not begin with /")
        return paths


Where = Callable[[Steps], str]


def load(path: Path | None, given: dict[str, Any]) -> Config:
    """The configuration in the file ``path``, with what was ``given`` on the command line. Raises InputError."""
    document = _read(path) if path is not None else Document("the command line", {})
    for name, value in given.items():
        document.put((name,), value, OPTIONS.get(name, f"--{name.replace('_', '-')}"))
    try:
        config = Config.model_validate(document.data)
    except ValidationError as error:
        first = problems_of(error, Config, document.where, whole="the router")[0]
        raise InputError(first.sentence(), fix=first.fix or "docs/router.md lists every option.") from None
    _check_pairs(config, document.where)
    return config.model_copy(update={"replicas": tuple(_addresses(config, document.where))})


def _check_pairs(config: Config, where: Where) -> None:
    for cert, key in (("tls_cert", "tls_key"), ("admin_tls_cert", "admin_tls_key")):
        given = [name for name in (cert, key) if getattr(config, name) is not None]
        if len(given) == 1:
            missing = key if given[0] == cert else cert
            raise InputError(f"{where((given[0],))}: {cert} and {key} go together.", fix=f"Give {missing} as well.")
    if config.port and (config.host, config.port) == (config.admin_host, config.admin_port):
        raise InputError(
            f"{where(('admin_port',))}: admin_port is {config.port} like port, and each needs its own.",
            fix="Give another admin_port.",
        )
    if config.precise is not None and config.workers > 1:
        raise InputError(f"{where(('workers',))}: precise goes with one worker.", fix="Leave workers out.")


def _addresses(config: Config, where: Where) -> Iterator[str]:
    """The URLs of the replicas, as they are called everywhere."""
    if config.replica_dns is not None:
        _read_at(config.replica_dns, where(("replica_dns",)), "NAME:PORT")
    for index, text in enumerate(config.replicas):
        place = where(("replicas", index))
        address = _read_at(text, place)
        for host, port in ((config.host, config.port), (config.admin_host, config.admin_port)):
            if is_own(address, host, port):
                raise InputError(
                    f"{place}: {text} is where this router itself listens, and no replica.",
                    fix="Give the engine's address, or the router another port.",
                )
        yield address.url


def _read_at(text: str, place: str, form: str = "") -> Address:
    try:
        return read_address(text)
    except InputError as error:
        fix = f"Write {form}." if form else error.fix
        raise InputError(f"{place}: {error.message}", fix=fix) from None


def _read(path: Path) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file in UTF-8.", fix="Write one `option: value` a line.") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.", fix="Check the path and its permissions.") from None
    if not any(line.split("#", 1)[0].strip() for line in text.splitlines()):
        return Document(str(path), {})
    return parse_document(text, str(path), kind="file of the router's options")


def read_keys(path: Path | None, variable: str) -> tuple[bytes, ...]:
    """The API keys in the file ``path``, one a line, or the one in the environment. Raises InputError.

    Never an option of the command line: everybody on the machine can read that.
    """
    if path is None:
        value = os.environ.get(variable, "").strip()
        return (value.encode(),) if value else ()
    try:
        keys = tuple(line.strip() for line in path.read_bytes().splitlines() if line.strip())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.", fix="Check the path and its permissions.") from None
    if not keys:
        raise InputError(f"{path}: there is no key in it.", fix="Write one key a line.")
    return keys
