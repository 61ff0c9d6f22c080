"""What a conversion says of itself while it runs."""

from __future__ import annotations

import time

import pytest

from optistack_quant_nvfp4.convert.run import Progress

GIB = 2**30


@pytest.mark.parametrize(
    ("total", "done", "earlier", "took_s", "says"),
    [
        (4 * GIB, 1 * GIB, 0, 64, "25% of 4.00 GiB, 16 MiB/s, 3 min left"),
        (4 * GIB, 3 * GIB, 0, 64, "75% of 4.00 GiB, 48 MiB/s, 21 s left"),
        (600 * GIB, 6 * GIB, 0, 60, "1% of 600.00 GiB, 102 MiB/s, 1 h 39 min left"),
        (4 * GIB, 3 * GIB, 2 * GIB, 64, "75% of 4.00 GiB, 16 MiB/s, 64 s left"),
        (4 * GIB, 2 * GIB, 2 * GIB, 64, "50% of 4.00 GiB"),
        (4 * GIB, 1 * GIB, 0, 0.5, "25% of 4.00 GiB"),
    ],
    ids=["minutes", "seconds", "hours", "what a run before did is no speed", "nothing of this run yet", "too early"],
)
def test_it_tells_the_share_the_speed_and_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, total: int, done: int, earlier: int, took_s: float, says: str
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000 + took_s)
    assert Progress(total, done, earlier, started=1000.0).text() == says
