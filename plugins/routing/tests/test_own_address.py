"""A router is no replica of itself: its requests would go round in a circle."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugins.routing.tests.rig import play, rig

from optistack.errors import InputError
from optistack_routing.fleet.address import is_own, read_address
from optistack_routing.router.config import load


@pytest.mark.parametrize(
    ("url", "host", "own"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", True),
        ("http://localhost:8000", "127.0.0.1", True),
        ("http://127.0.0.1:8000", "0.0.0.0", True),
        ("http://127.0.0.1:8001", "0.0.0.0", False),
        ("http://192.0.2.1:8000", "0.0.0.0", False),
        ("http://gpu-3:8000", "0.0.0.0", False),
        ("http://[::1]:8000", "::1", True),
    ],
)
def test_own_addresses_are_told_from_others(url: str, host: str, own: bool) -> None:
    assert is_own(read_address(url), host, 8000) is own


def test_a_port_that_the_system_picks_is_nobodys_yet() -> None:
    assert not is_own(read_address("http://127.0.0.1:8000"), "127.0.0.1", 0)


@pytest.mark.parametrize("port", [8080, 8081])
def test_a_router_refuses_its_own_address_at_the_start(port: int) -> None:
    with pytest.raises(InputError, match="is where this router itself listens"):
        load(None, {"replicas": [f"http://127.0.0.1:{port}"], "port": 8080, "admin_port": 8081})


def test_neither_a_file_nor_an_admin_can_bring_it_in(tmp_path: Path) -> None:
    named = tmp_path / "replicas"
    named.write_text("http://127.0.0.1:18123\nhttp://127.0.0.1:9\n")

    async def scenario() -> None:
        async with rig(start=False, port=18123, replica_file=named) as r:
            assert [member.name for member in r.control.roster] == ["http://127.0.0.1:9"]
            status, _, body = await r.admin("POST", "/replicas", b'{"url": "http://127.0.0.1:18123"}')
            assert status == 400
            assert b"itself" in body

    play(scenario())
