"""The HTML page in a real headless Chromium: nothing scrolls sideways at any width, and nothing else is asked for."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.conformance.test_reports import report

from optistack_conformance.outcomes import Outcome
from optistack_conformance.reports.html import html_page

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")

MEASURE = """<script>addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument;
  page.querySelectorAll("details").forEach(one => { one.open = true; });
  const sizes = one => parseFloat(page.defaultView.getComputedStyle(one).fontSize);
  const fonts = [...page.querySelectorAll("body *")].map(sizes);
  document.title = [page.documentElement.scrollWidth, page.documentElement.clientWidth, Math.min(...fonts),
    page.querySelectorAll("details").length].join(" ");
});</script>"""


class _Handler(BaseHTTPRequestHandler):
    page: bytes
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = self.page if self.path == "/" else b""
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def serving(page: str, asked: list[str]) -> Iterator[str]:
    handler = type("Handler", (_Handler,), {"page": page.encode(), "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def long_report() -> str:
    """With words that do not break by themselves: an id, a URL, what a server said."""
    value = report(Outcome.FAIL, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.SKIPPED)
    first = value.results[0].model_copy(update={"id": "lossless/" + "long-" * 40, "why": "x" * 500, "known": "y" * 200})
    return html_page(value.model_copy(update={"results": (first, *value.results[1:]), "plan_hash": "f" * 64}))


@pytest.mark.parametrize("width", [320, 390, 1100])
def test_nothing_scrolls_sideways_and_nothing_is_loaded(width: int, tmp_path: Path) -> None:
    asked: list[str] = []
    frame = f'<iframe width="{width}" height="800" style="border:0" srcdoc="{html.escape(long_report())}"></iframe>'
    with serving(f"<!doctype html><title>not measured</title>{frame}{MEASURE}", asked) as url:
        words = [CHROMIUM, "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}"]
        words += ["--disable-background-networking", "--virtual-time-budget=5000", "--dump-dom", url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(\d+) (\d+) ([\d.]+) (\d+)</title>", done.stdout)
    assert title, done.stdout[-500:] + done.stderr[-500:]
    scroll, client, font, details = (float(number) for number in title.groups())
    assert (client, details) == (width, 4), "the frame is as wide as a phone, and every case is unfolded"
    assert scroll <= client
    assert font >= 12, f"text of {font} px is hard to read"
    assert set(asked) <= {"/", "/favicon.ico"}
