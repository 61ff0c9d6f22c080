"""What lasts: many streams at once without growing latency, and memory over many requests.

    python benchmarks/router/soak.py [--requests 1000000] [--streams 500] [--rate 60] [--seconds 20] [--out FILE]

The streams' latency is that of each chunk from the mock engine to the client, in ten slices of each stream's life; the
same is measured without the router, since mock and client need cores of their own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from compare import ENGINES, HERE, commands, cpu_s, family, free_ports, load, memory_mib, process, wait_until_it_serves

STEPS = 10


def streams(port: int, pids: list[int], count: int, rate: float, seconds: float) -> dict[str, Any]:
    before, begun = cpu_s(pids), time.monotonic()
    answer = load(
        port=port, kind="stream", concurrency=count, count=count, chunks=int(rate * seconds), rate=rate, spread_s=1.0
    )
    wall_s = time.monotonic() - begun
    used_s = cpu_s(pids) - before
    found = {
        "streams": count,
        "chunks": answer["chunks"],
        "chunks_per_s_in_the_mean": round(answer["chunks"] / answer["wall_s"]),
        "lag_ms_p50_p99_by_tenth": answer["lag_ms"],
    }
    if pids:
        found |= {"cpu_us_a_chunk": round(1e6 * used_s / answer["chunks"], 2), "cores": round(used_s / wall_s, 3)}
    return found


def memory(port: int, pids: list[int], requests: int) -> list[dict[str, float]]:
    curve = [{"requests": 0.0, "rss_mib": round(memory_mib(pids), 2)}]
    for step in range(1, STEPS + 1):
        count = requests // STEPS
        load(port=port, kind="request", concurrency=32, count=count, body_bytes=2000, sessions=1000)
        curve.append({"requests": float(step * count), "rss_mib": round(memory_mib(pids), 2)})
        print(curve[-1], flush=True)
    return curve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rate", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ours = argparse.Namespace(haproxy=None, vllm_router=None, smg=None)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), free_ports(ENGINES)
        with process([sys.executable, str(HERE / "mock.py"), *map(str, ports)], folder / "mock.log"):
            wait_until_it_serves(ports[0], folder / "mock.log")
            found["direct"] = streams(ports[0], [], arguments.streams, arguments.rate, arguments.seconds)
            print("direct", found["direct"], flush=True)
            ((_, command, port),) = commands(ours, folder, ports)
            with process(command, folder / "log") as running:
                wait_until_it_serves(port, folder / "log")
                pids = family(running.pid)
                found["router"] = streams(port, pids, arguments.streams, arguments.rate, arguments.seconds)
                print("router", found["router"], flush=True)
                if arguments.out:  # in case that the long part is cut short
                    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
                found["memory"] = memory(port, pids, arguments.requests)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
