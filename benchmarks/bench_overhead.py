"""What the load generator costs: 200 streams of 50 chunks a second on one core, against a mock engine on another.

    python benchmarks/bench_overhead.py [--streams 200] [--rate 50] [--chunks 500] [--out FILE]

The mock (benchmarks/router/mock.py) writes the time into every chunk; `lag_ms` is from there to the generator's own
time of its arrival, quantiles over all chunks. `cpu` is the generator's CPU time over wall time: below 1, it keeps up.
`gap_ms` are the gaps between chunks as the benchmark reports them; the mock means `1000 / rate`. The load average
stands beside, since the lag of a busy machine is not the generator's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from optistack.apply.ports import free_port
from optistack_bench import client
from optistack_bench.ending import no_collection
from optistack_bench.load import Loop, Player
from optistack_bench.statistics import quantile
from optistack_bench.synthetic import SHAPES, Texts
from optistack_bench.tokens import TokenMaker

MOCK = Path(__file__).parent / "router" / "mock.py"
_STAMP = re.compile(rb'"t":(\d{20})')
lags_s: list[float] = []


class Stamped(client.Stream):
    """Reads the mock's time in every chunk; what that costs is part of what is measured."""

    def _event(self, event: bytes) -> None:
        super()._event(event)
        stamp = _STAMP.search(event)
        if stamp is not None:
            lags_s.append(time.monotonic() - int(stamp[1]) / 1e9)


async def alive(url: str) -> str:
    return ""


def measure(port: int, streams: int, rate: int, chunks: int) -> dict[str, Any]:
    workload = SHAPES["3k-100"](number=streams, divide=1, seed=0, maker=TokenMaker(), texts=Texts({}))
    turns = [session.turns[0] for session in workload.sessions]

    async def play() -> Any:
        one = client.Client(f"http://127.0.0.1:{port}", {"model": "m", "seed": rate}, "X-Session-Id")
        asked = one.ask

        async def ask(prompt: bytes, *, max_tokens: int, session: str) -> client.Answer:
            return await asked(prompt, max_tokens=chunks, session=session)

        one.ask = ask  # type: ignore[method-assign]  # the shape's own answers are too short to be steady
        player = Player([one], Loop(users=streams), seed=0, on_record=lambda record: None, alive=alive)
        return await player.play(workload)

    client.Stream = Stamped  # type: ignore[misc]  # every connection of this process is a stamped one
    cpu_s, began_s = time.process_time(), time.perf_counter()
    with no_collection():
        played = asyncio.run(play())
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - began_s
    gaps = [gap for record in played.records for gap in record.gaps_s]
    good = [record for record in played.records if not record.error]
    return {
        "streams": streams,
        "rate": rate,
        "prompt_tokens": turns[0].prompt_tokens,
        "whole_answers": len(good),
        "chunks": len(gaps) + len(good),
        "chunks_s": round((len(gaps) + len(good)) / wall_s),
        "wall_s": round(wall_s, 2),
        "nominal_s": chunks / rate,
        "cpu": round(cpu_s / wall_s, 3),
        "cpu_us_a_chunk": round(1e6 * cpu_s / len(gaps), 1),
        "gap_ms": {f"p{round(100 * at)}": round(1000 * quantile(gaps, at), 2) for at in (0.5, 0.95, 0.99)},
        "lag_ms": {f"p{round(100 * at)}": round(1000 * quantile(lags_s, at), 2) for at in (0.5, 0.95, 0.99)},
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--chunks", type=int, default=500)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    port = free_port("127.0.0.1")
    mock = subprocess.Popen([sys.executable, str(MOCK), str(port)], stdout=subprocess.PIPE, text=True)
    try:
        os.sched_setaffinity(mock.pid, {cores[-1]})
        os.sched_setaffinity(0, {cores[0]})
        assert mock.stdout is not None
        mock.stdout.readline()
        found = measure(port, given.streams, given.rate, given.chunks)
    finally:
        mock.terminate()
        mock.wait()
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
