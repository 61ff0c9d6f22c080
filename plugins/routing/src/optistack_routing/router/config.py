"""What a router can be told, in a file or on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from optistack.errors import InputError, nearest
from optistack_routing.fleet.address import read_address
from optistack_routing.proxy.session import SESSION_HEADERS
from optistack_routing.proxy.settings import PATHS
from optistack_routing.tap.options import Tap

KEY_VARIABLE = "OPTISTACK_ROUTE_API_KEY"
ADMIN_KEY_VARIABLE = "OPTISTACK_ROUTE_ADMIN_KEY"
UPSTREAM_KEY_VARIABLE = "OPTISTACK_ROUTE_UPSTREAM_KEY"


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

    @field_validator("replicas")
    @classmethod
    def _urls(cls, replicas: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_checked(url) for url in replicas)

    @field_validator("session_headers")
    @classmethod
    def _header_names(cls, headers: tuple[str, ...]) -> tuple[str, ...]:
        from optistack_routing.options import PER_REQUEST_HEADERS

        for header in headers:
            if header.lower() in PER_REQUEST_HEADERS:
                raise ValueError(f"{header} is new in each request, so every request would be a session of its own")
        return tuple(header.lower() for header in headers)

    @field_validator("paths")
    @classmethod
    def _paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/"):
                raise ValueError(f"the path {path!r} does not begin with /")
        return paths

    @model_validator(mode="after")
    def _pairs(self) -> Config:
        for cert, key in (("tls_cert", "tls_key"), ("admin_tls_cert", "admin_tls_key")):
            if (getattr(self, cert) is None) is not (getattr(self, key) is None):
                raise ValueError(f"{cert} and {key} go together")
        if self.port and (self.host, self.port) == (self.admin_host, self.admin_port):
            raise ValueError(f"admin_port is {self.port} like port, and each needs its own")
        if self.precise is not None and self.workers > 1:
            raise ValueError("precise goes with one worker")
        return self


def _checked(url: str) -> str:
    try:
        return read_address(url).url
    except InputError as error:
        raise ValueError(f"{error.message} {error.fix}") from None


def load(path: Path | None, given: dict[str, Any]) -> Config:
    """The configuration in the file ``path``, with what was ``given`` on the command line. Raises InputError."""
    data: dict[str, Any] = {}
    where = "the command line"
    if path is not None:
        where = str(path)
        data = _read(path)
    unknown = [key for key in data if key not in Config.model_fields]
    if unknown:
        raise InputError(f"{path}: there is no option {unknown[0]!r}.", fix=nearest(unknown[0], Config.model_fields))
    try:
        return Config.model_validate({**data, **given})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "options"
        said = first["msg"].removeprefix("Value error, ")
        place = "the command line" if first["loc"] and first["loc"][0] in given else where
        raise InputError(f"{name} in {place}: {said}.", fix="docs/router.md lists every option.") from None


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.", fix="Check the path and its permissions.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        at = f"{path}:{line + 1}" if line is not None else str(path)
        raise InputError(f"{at}: this is no YAML.", fix="Write one `option: value` a line.") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: the file holds no options.", fix="Write one `option: value` a line.")
    return data


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
