"""From the command line to a running router."""

from __future__ import annotations

import logging
import resource
import sys

import uvloop

from optistack_routing.router.config import Config
from optistack_routing.router.service import serve


def run(config: Config) -> None:
    """Run until a signal ends it. Raises InputError for what cannot be used."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.INFO)
    _raise_file_limit()
    uvloop.run(serve(config))


def _raise_file_limit() -> None:
    """Each stream takes two descriptors; the usual soft limit of 1024 is reached with 500."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
