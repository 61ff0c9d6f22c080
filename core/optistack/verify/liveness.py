"""Whether a server is still there, asked after something that was sent to it failed."""

from __future__ import annotations

import time

from optistack.errors import InputError
from optistack.verify.endpoint import Endpoint

TRIES = 4
EVERY_S = 0.5
TIMEOUT_S = 5.0


def takes_connections(url: str, api_key: str | None = None) -> bool:
    """Whether somebody takes a new connection at ``url``: one that is open may outlive who listens.

    Whatever is answered counts, and a server that takes the request and is slow to answer is there too. Lasts up to
    TRIES * (TIMEOUT_S + EVERY_S), where not even a connection comes about.
    """
    import httpx

    for number in range(TRIES):
        if number:
            time.sleep(EVERY_S)
        try:
            with Endpoint(url, api_key=api_key, timeout_s=TIMEOUT_S) as endpoint:
                endpoint.request("GET", "/v1/models")
        except InputError as error:
            cause = error.__cause__
            if isinstance(cause, httpx.TimeoutException) and not isinstance(cause, httpx.ConnectTimeout):
                return True
        else:
            return True
    return False
