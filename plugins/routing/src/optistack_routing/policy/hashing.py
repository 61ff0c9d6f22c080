"""Rendezvous hashing: every key orders the replicas in its own way, and a new replica takes its share from each alike.

Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM Trans. Networking 6(1), 1998.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from optistack_routing.policy.base import Replica

_MASK = (1 << 64) - 1


@lru_cache(maxsize=65_536)
def digest(text: str) -> int:
    """64 bits of a text, the same in every process and on every machine."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def first(key: str, replicas: list[Replica]) -> Replica:
    """The replica that ``key`` ranks first; ``replicas`` is not empty.

    Each replica has its own multiplicative hash of the key (Dietzfelbinger et al., "A reliable randomized algorithm for
    the closest-pair problem", 1997), which a loop over hundreds of replicas can afford.
    """
    hashed = digest(key)
    names = [digest(replica.name) for replica in replicas]
    weights = [((hashed ^ name) * (name | 1)) & _MASK for name in names]
    return replicas[weights.index(max(weights))]
