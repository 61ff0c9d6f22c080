"""Whether the servers of a run are still there."""

from __future__ import annotations

import time

from optistack.errors import InputError
from optistack.verify.endpoint import Endpoint
from optistack_conformance.selection import Selection

TRIES = 4
EVERY_S = 0.5
TIMEOUT_S = 10.0


def gone(selection: Selection) -> str:
    """Which server takes no connection any more, in a sentence; ``""`` when each does. One that is slow is there."""
    for what, url in (("The server under test", selection.endpoint), ("The baseline", selection.baseline)):
        if url is not None and not _takes_connections(url):
            return f"{what} is gone: nobody answers at {url}."
    return ""


def _takes_connections(url: str) -> bool:
    import httpx

    for number in range(TRIES):
        if number:
            time.sleep(EVERY_S)
        try:
            with Endpoint(url, timeout_s=TIMEOUT_S) as endpoint:
                endpoint.request("GET", "/v1/models")
        except InputError as error:
            if isinstance(error.__cause__, httpx.TimeoutException):
                return True
        else:
            return True
    return False
