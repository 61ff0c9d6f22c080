"""CPU, latency and memory of routers before mock engines, side by side in one run.

    python benchmarks/router/compare.py --haproxy HAPROXY --vllm-router VLLM_ROUTER --smg SMG [--rounds 5] [--out FILE]

Each of the three is a program's path; one that is not given is left out. CPU time is the kernel's, of every thread of
the router's processes (/proc/PID/task/*/schedstat), so that waiting on a busy machine does not count into it. Rounds go
through all the routers in turn; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENGINES = 4

WORKLOADS: dict[str, dict[str, Any]] = {
    "2 KB request": {"kind": "request", "concurrency": 16, "count": 3000, "body_bytes": 2000},
    "400 KB request": {"kind": "request", "concurrency": 8, "count": 200, "body_bytes": 400_000},
    "SSE chunk": {"kind": "stream", "concurrency": 100, "count": 100, "chunks": 200, "rate": 60, "spread_s": 0.3},
}
TTFB = {"kind": "request", "concurrency": 1, "count": 600, "body_bytes": 2000}


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def cpu_s(pids: list[int]) -> float:
    """CPU time that the processes have used, in seconds."""
    total = 0
    for pid in pids:
        for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            total += int(stat.read_text().split()[0])
    return total / 1e9


def memory_mib(pids: list[int]) -> float:
    lines = (line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in family(int(child)))]


def load(**options: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "load.py"), json.dumps(options)], capture_output=True, text=True, timeout=400
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer = json.loads(done.stdout)
    if answer["errors"]:
        raise RuntimeError(f"{answer['errors']} errors, {answer['requests']} answers: {answer['first_error']}")
    return answer


@contextmanager
def process(command: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, text=True, start_new_session=True)
    try:
        yield running
    finally:
        for pid in family(running.pid):  # smg's router is in a session of its own
            os.kill(pid, signal.SIGKILL)
        running.wait()


def wait_until_it_serves(port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            load(port=port, kind="request", concurrency=1, count=1)
            return
        except (RuntimeError, subprocess.TimeoutExpired):
            time.sleep(0.3)
    raise RuntimeError(f"It does not serve:\n{log.read_text()[-2000:]}")


HAPROXY = """
global
  maxconn 4000
  nbthread 1
defaults
  mode http
  option http-no-delay
  option http-keep-alive
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend front
  bind 127.0.0.1:{port}
  default_backend engines
backend engines
  balance hdr(x-session-id)
  hash-type consistent sdbm avalanche
  hash-balance-factor 150
  option httpchk GET /health
  {servers}
"""


def commands(arguments: argparse.Namespace, folder: Path, ports: list[int]) -> Iterator[tuple[str, list[str], int]]:
    """Name, command line and port of each router that is here."""
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    port, admin = free_ports(2)
    ours = [sys.executable, "-m", "optistack.cli", "route", "--port", str(port), "--admin-port", str(admin)]
    ours += ["--access-log", str(folder / "access.log"), *(word for url in urls for word in ("--replica", url))]
    yield "optistack route", ours, port
    if arguments.haproxy:
        (port,) = free_ports(1)
        servers = "\n  ".join(f"server s{n} 127.0.0.1:{engine} check" for n, engine in enumerate(ports))
        (folder / "haproxy.cfg").write_text(HAPROXY.format(port=port, servers=servers))
        yield "HAProxy", [*shlex.split(arguments.haproxy), "-f", str(folder / "haproxy.cfg")], port
    if arguments.vllm_router:
        for policy in ("consistent_hash", "sticky_least_loaded"):
            port, metrics = free_ports(2)
            command = [*shlex.split(arguments.vllm_router), "--host", "127.0.0.1", "--port", str(port)]
            command += ["--policy", policy, "--worker-urls", *urls, "--prometheus-host", "127.0.0.1"]
            command += ["--prometheus-port", str(metrics), "--log-level", "warning"]
            yield f"vllm-router {policy}", command, port
    if arguments.smg:
        port, metrics = free_ports(2)
        command = [*shlex.split(arguments.smg), "launch", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--policy", "least_load", "--routing-key-override", "--routing-key-headers", "x-session-id"]
        command += ["--assignment-mode", "min_load", "--worker-urls", *urls]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics), "--log-level", "warn"]
        yield "smg least_load + routing key", command, port


def measure(pid: int, port: int, name: str, options: dict[str, Any]) -> dict[str, float]:
    load(**{"port": port, **options, "count": max(options["concurrency"], options["count"] // 10), "spread_s": 0})
    pids = family(pid)
    before = cpu_s(pids)
    answer = load(port=port, **options)
    used = cpu_s(pids) - before
    per = answer["chunks"] if options["kind"] == "stream" else answer["requests"]
    found = {f"{name}: CPU us": 1e6 * used / per}
    if options["kind"] == "stream" and answer["lag_ms"]:
        found[f"{name}: lag p50 ms"] = statistics.median(slice_[0] for slice_ in answer["lag_ms"] if slice_)
    return found


def figures_of(pid: int, port: int, log: Path, direct_ms: float) -> dict[str, float]:
    """All figures of the router that has just been started. Raises RuntimeError when it fails requests."""
    wait_until_it_serves(port, log)
    figures = {}
    for workload, options in WORKLOADS.items():
        figures |= measure(pid, port, workload, options)
    figures["TTFB p50 ms"] = ttfb_ms(port)
    figures["added TTFB p50 ms"] = figures["TTFB p50 ms"] - direct_ms
    figures["RSS MiB"] = memory_mib(family(pid))
    return figures


def ttfb_ms(port: int) -> float:
    return statistics.median(load(port=port, **TTFB)["ttfb_ms"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--haproxy", help="the program, with arguments")
    parser.add_argument("--vllm-router")
    parser.add_argument("--smg")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="names of routers that begin with one of these")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ports = free_ports(ENGINES)
        log = folder / "log"
        with process([sys.executable, str(HERE / "mock.py"), *map(str, ports)], folder / "mock.log"):
            wait_until_it_serves(ports[0], folder / "mock.log")
            for number in range(arguments.rounds):
                found: dict[str, dict[str, float]] = {}
                direct = ttfb_ms(ports[0])
                found["direct"] = {"TTFB p50 ms": direct}
                for router, command, port in commands(arguments, folder, ports):
                    if arguments.only and not router.startswith(tuple(arguments.only)):
                        continue
                    try:
                        with process(command, log) as running:
                            figures = found[router] = figures_of(running.pid, port, log, direct)
                    except (RuntimeError, subprocess.TimeoutExpired) as error:  # the others are measured all the same
                        print(number, router, f"failed: {error}", flush=True)
                        continue
                    print(number, router, {key: round(value, 3) for key, value in figures.items()}, flush=True)
                rounds.append(found)
                write(rounds, arguments.out)  # after each, in case that the next is cut short


def _columns(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


def write(rounds: list[dict[str, dict[str, float]]], out: Path | None) -> None:
    routers = dict.fromkeys(router for one in rounds for router in one)
    each = {router: _columns([one[router] for one in rounds if router in one]) for router in routers}
    medians = {
        router: {key: statistics.median(values) for key, values in figures.items()} for router, figures in each.items()
    }
    for router, figures in medians.items():
        print(router, {key: round(value, 3) for key, value in figures.items()}, flush=True)
    if out is not None:
        out.write_text(json.dumps({"rounds": len(rounds), "medians": medians, "each": each}, indent=1) + "\n")


if __name__ == "__main__":
    main()
