"""Starting, finding and stopping deployments, with real processes."""

from __future__ import annotations

from typing import Any

from optistack.apply.deployment import find, list_deployments, stop
from optistack.apply.start import Progress, start
from optistack.apply.state import Phase


def test_start_waits_until_ready_and_down_leaves_nothing(lab: Any) -> None:
    told: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        told.append(progress)
        if progress.log_line == "loading weights":
            lab.trigger.touch()

    deployment = start(lab.spec("--ready-when", lab.trigger), on_progress=on_progress)
    assert deployment.alive() and deployment.state.phase is Phase.READY
    assert told[-1].log_line == "loading weights" and (told[-1].ready, told[-1].processes) == (0, 1)
    assert [found.name for found in list_deployments()] == ["test"]
    assert find("test").spec == deployment.spec
    assert stop(deployment) is True
    assert not deployment.alive() and lab.leftovers() == []
    assert find("test").state.phase is Phase.STOPPED
    assert stop(deployment) is False
