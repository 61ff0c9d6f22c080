"""A deployment whose files cannot be read is told in a sentence, and stands in no other's way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from optistack.apply.deployment import find, folder_of
from optistack.apply.folder import DeploymentFolder

Optistack = Callable[..., Any]
DAMAGES: dict[str, Callable[[DeploymentFolder], object]] = {
    "empty": lambda folder: folder.state_file.write_text(""),
    "of another kind": lambda folder: folder.state_file.write_text('{"phase": "asleep"}'),
    "a folder": lambda folder: folder.state_file.mkdir(),
    "a loop": lambda folder: folder.state_file.symlink_to(folder.state_file),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_others_are_listed_and_it_is_told(
    optistack: Optistack, small: Any, damage: Callable[[DeploymentFolder], object]
) -> None:
    assert optistack("apply").code == 0
    broken = folder_of("broken")
    broken.path.mkdir()
    damage(broken)
    told = f"{broken.state_file} is missing or damaged. Remove the folder {broken.path}."

    ran = optistack("status", "--json")
    assert ran.code == 0, ran.err
    found = {one["name"]: one for one in ran.json["deployments"]}
    assert {name: (one["phase"], one["running"]) for name, one in found.items()} == {
        "tiny": ("ready", True),
        "broken": ("damaged", False),
    }
    assert found["broken"]["reason"] == told
    assert found["broken"].keys() == found["tiny"].keys()
    assert told in " ".join(optistack("status").out.split())

    down = optistack("down", "broken")
    assert down.code == 2
    assert f"Remove the folder {broken.path}." in down.err
    stopped = optistack("down")
    assert (stopped.code, stopped.out) == (0, "Stopped tiny.\n")
    assert told in stopped.err
    assert optistack("apply").code == 0, "a start looks at the ports of all deployments"
    assert optistack("down", "tiny").code == 0


def test_one_that_still_runs_is_stopped_by_its_supervisor(optistack: Optistack, small: Any) -> None:
    assert optistack("apply").code == 0
    deployment = find("tiny")
    supervisor = deployment.state.supervisor
    assert supervisor is not None
    deployment.folder.state_file.write_text("{")

    (listed,) = optistack("status", "--json").json["deployments"]
    assert (listed["phase"], listed["running"]) == ("damaged", True)
    down = optistack("down", "tiny")
    assert down.code == 2
    assert f"`kill {supervisor.pid}` stops it" in down.err
    everything = optistack("down")
    assert (everything.code, everything.out) == (1, ""), "it still runs"
    assert f"`kill {supervisor.pid}` stops it" in everything.err

    os.kill(supervisor.pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while deployment.folder.locked():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert optistack("status", "--json", "--all").json["deployments"][0]["phase"] == "stopped"


def test_a_receipt_that_cannot_be_read_is_none(optistack: Optistack, small: Any) -> None:
    assert optistack("apply", "--no-verify").code == 0
    find("tiny").folder.receipt_file.mkdir()
    assert optistack("status", "--json").json["deployments"][0]["receipts"] == []
