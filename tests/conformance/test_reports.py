"""The report: verdicts, exit codes, and an HTML page that stands alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from optistack.cli.screen import plain
from optistack_conformance.outcomes import CaseResult, Figure, Outcome
from optistack_conformance.report import Report, Subject
from optistack_conformance.reports.html import html_page
from optistack_conformance.reports.terminal import report_view

FIGURE = Figure(name="KL (k3)", value=0.00031, unit="nat", relation="<=", threshold=0.0003, floor=0.0001, n=6)
VOID = {"meta", "br"}


def report(*outcomes: Outcome) -> Report:
    server = Subject(where="http://127.0.0.1:8000", engine="vllm", engine_version="0.32.0", model="<m> & co")
    return Report(
        optistack_version="0.1.0",
        made_at="2026-01-01T00:00:00+00:00",
        candidate=server,
        settings={"profile": "quick", "seed": 7},
        plan_hash="abc123",
        chat_template_hash="def456",
        evals_version="1",
        results=tuple(
            CaseResult(
                id=f"lossless/case-{number}",
                tier=1,
                summary="It holds.",
                outcome=outcome,
                why="<b>off</b>",
                figures=(FIGURE,),
            )
            for number, outcome in enumerate(outcomes)
        ),
    )


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([Outcome.PASS, Outcome.SKIPPED], 0),
        ([Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE], 1),
        ([Outcome.PASS, Outcome.INCONCLUSIVE], 4),
        ([Outcome.SKIPPED], 4),
        ([], 4),
    ],
)
def test_exit_code_is_that_of_the_worst_outcome(outcomes: list[Outcome], code: int) -> None:
    assert report(*outcomes).exit_code == code


def test_json_has_verdicts_and_figures() -> None:
    value = json.loads(json.dumps(report(Outcome.FAIL).as_json()))
    assert value["verdict"] == "fail"
    assert value["tiers"] == {"lossless": "fail"}
    assert value["results"][0]["figures"][0]["floor"] == 0.0001


def test_terminal_shows_every_failure_with_its_figures() -> None:
    text = plain(*report_view(report(Outcome.FAIL), wide=True))
    for part in ("lossless/case-0", "0.00031 nat", "≤ 0.0003", "A/A noise 0.0001", "n = 6", "abc123", "def456"):
        assert part in text


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(f"{tag}.{name}", value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_page_stands_alone() -> None:
    """No script, no address to load from, well nested, what comes from a server escaped."""
    source = html_page(report(Outcome.FAIL, Outcome.PASS))
    page = Page()
    page.feed(source)
    assert page.open == []
    assert not re.search(r"<script|<link|<img|@import|url\(", source)
    assert not [name for name, _ in page.attributes if name.split(".")[1] in ("src", "href", "srcset")]
    assert ("meta.content", "width=device-width, initial-scale=1") in page.attributes
    for part in ("<m> & co", "<b>off</b>", "0.00031 nat", "≤ 0.0003", "A/A noise 0.0001", "abc123", "def456"):
        assert part in page.text
