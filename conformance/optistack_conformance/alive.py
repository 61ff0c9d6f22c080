"""Whether the servers of a run are still there."""

from __future__ import annotations

from optistack.verify.liveness import takes_connections
from optistack_conformance.selection import Selection


def gone(selection: Selection) -> str:
    """Which server takes no connection any more, in a sentence; ``""`` when each does. One that is slow is there."""
    for what, url in (("The server under test", selection.endpoint), ("The baseline", selection.baseline)):
        if url is not None and not takes_connections(url):
            return f"{what} is gone: nobody answers at {url}."
    return ""
