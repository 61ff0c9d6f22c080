"""What all connections of the front side share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optistack_routing.fleet.desk import Desk
from optistack_routing.http.server import Limits
from optistack_routing.proxy.pool import Pools
from optistack_routing.proxy.record import Recorder
from optistack_routing.proxy.session import Reader

if TYPE_CHECKING:
    from optistack_routing.kv_index.overlap import Overlap
    from optistack_routing.proxy.front import Front

PATHS = (
    "/v1/",
    "/generate",
    "/tokenize",
    "/detokenize",
    "/health_generate",
    "/version",
    "/get_model_info",
    "/model_info",
)


@dataclass
class Settings:
    """What every connection of the front side shares. ``retries`` is how often a request may be sent again."""

    desk: Desk
    pools: Pools
    recorder: Recorder
    reader: Reader = field(default_factory=Reader)
    limits: Limits = field(default_factory=Limits)
    paths: tuple[str, ...] = PATHS
    api_keys: tuple[bytes, ...] = ()
    authorization: bytes | None = None
    retries: int = 2
    retry_statuses: frozenset[int] = frozenset((502, 503, 504))
    connect_s: float = 2.0
    first_byte_s: float = 600.0
    idle_s: float = 300.0
    name_replica: bool = False
    overlap: Overlap | None = None
    connections: set[Front] = field(default_factory=set)
    draining: bool = False

    def __post_init__(self) -> None:
        self.prefixes = tuple(path.encode() for path in self.paths)
