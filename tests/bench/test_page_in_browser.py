"""The HTML report of kept results in a real headless Chromium: it fits its window, and nothing else is asked for."""

from __future__ import annotations

import html
import re
import subprocess
from pathlib import Path

import pytest
from tests.conformance.test_page_in_browser import CHROMIUM, MEASURE, serving

from optistack_bench.html import html_page
from optistack_bench.join import join
from optistack_bench.result import load_result

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "evidence" / "bench-h200").glob("*/result.json"))

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")


@pytest.mark.parametrize("width", [390, 1100])
def test_the_report_fits_its_window_and_loads_nothing(width: int, tmp_path: Path) -> None:
    page = html_page(join({file.parent.name: load_result(file) for file in KEPT}), 100)
    asked: list[str] = []
    frame = f'<iframe width="{width}" height="800" style="border:0" srcdoc="{html.escape(page)}"></iframe>'
    with serving(f"<!doctype html><title>not measured</title>{frame}{MEASURE}", asked) as url:
        words = [CHROMIUM, "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}"]
        words += ["--disable-background-networking", "--virtual-time-budget=5000", "--dump-dom", url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(\d+) (\d+) ", done.stdout)
    assert title, done.stdout[:500] + done.stderr[-500:]
    scroll, client = map(int, title.groups())
    assert client == width and scroll <= client
    assert set(asked) <= {"/", "/favicon.ico"}
