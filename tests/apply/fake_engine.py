"""An engine that misbehaves on demand. Run by path; answers 200 on its port once ``--ready-when FILE`` exists."""

import argparse
import http.server
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--ready-when", type=Path, default=None)
parser.add_argument("--crash-when", type=Path, default=None)
parser.add_argument("--crash", default="")
parser.add_argument("--handled", default="", help="an exception that is printed and no obstacle")
parser.add_argument("--daemon-when", type=Path, default=None)
parser.add_argument("--orderly", type=Path, default=None, help="who got SIGTERM; the engine ends its own child then")
parser.add_argument("--last-request-s", type=float, default=0.3, help="how long the orderly engine takes to end")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--children", nargs="*", default=[], choices=["stubborn", "daemon", "bare"])
parser.add_argument("--shared", type=Path, default=None, help="a file that it makes, maps, and never removes")
parser.add_argument("--pids", type=Path, default=None, help="where every process writes its pid")
options = parser.parse_args()


def write_pid() -> None:
    if options.pids:
        with options.pids.open("a") as file:
            file.write(f"{os.getpid()}\n")


def ignore_all() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)


def child(kind: str) -> None:
    """``stubborn`` ignores signals; ``daemon`` also leaves group, session and parent; ``bare`` its environment too."""
    if os.fork():
        return
    ignore_all()
    if kind != "stubborn":
        os.setsid()
        if os.fork():
            os._exit(0)
    write_pid()
    if kind == "bare":
        os.execve("/bin/sh", ["sh", "-c", "trap '' TERM INT HUP; while :; do /bin/sleep 1000; done"], {})
    while True:
        time.sleep(1000)


def orderly() -> None:
    helper = os.fork()

    def note(signum: int, frame: object) -> None:
        with options.orderly.open("a") as file:
            file.write("engine\n" if helper else "helper\n")
        if helper:
            time.sleep(options.last_request_s)  # it lets its helper finish
            os.kill(helper, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, note)
    while not helper:
        time.sleep(1000)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ready = options.ready_when is None or options.ready_when.exists()
        self.send_response(200 if ready else 503)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def when(file: Path | None, action: Callable[[], None]) -> None:
    def wait() -> None:
        while not file.exists():
            time.sleep(0.02)
        action()

    if file:
        threading.Thread(target=wait, daemon=True).start()


def crash() -> None:
    print("RuntimeError: the device fell off the bus", flush=True)
    os._exit(3)


def share(file: Path) -> mmap.mmap:
    with file.open("w+b") as opened:
        opened.truncate(mmap.PAGESIZE)
        return mmap.mmap(opened.fileno(), mmap.PAGESIZE)


write_pid()
shared = share(options.shared) if options.shared else None
print("loading weights", flush=True)
if options.handled:
    print(f"Traceback (most recent call last):\n  File 'x', line 1\n{options.handled}", flush=True)
if options.crash:
    print(f"Traceback (most recent call last):\n  File 'x', line 1\n{options.crash}", file=sys.stderr, flush=True)
    pointer = "RuntimeError: Engine core initialization failed. See root cause above."
    print(f"Traceback (most recent call last):\n  File 'x', line 2\n{pointer}", file=sys.stderr, flush=True)
    sys.exit(1)
for kind in options.children:
    child(kind)
if options.ignore_term:
    ignore_all()
if options.orderly:
    orderly()
when(options.crash_when, crash)
when(options.daemon_when, lambda: child("daemon"))
http.server.HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
