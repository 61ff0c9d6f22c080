"""The table of rules says what the rules say."""

from __future__ import annotations

import re

from scripts.rules_page import PAGE, page

from optistack.host import Host
from optistack.plan.rule_book import all_rules


def test_the_page_is_made_from_the_rules() -> None:
    assert PAGE.read_text() == page(), "run: make docs"


def test_every_rule_has_one_row_and_says_how_it_is_known() -> None:
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \|.* (observed|read|reported) \| ", PAGE.read_text(), flags=re.MULTILINE)
    known = {rule.id: rule.evidence.value for _, rule in all_rules(Host.from_environment())}
    assert len(rows) == len(dict(rows))
    assert dict(rows).items() <= known.items()
    assert len(rows) > 150


def test_no_cell_breaks_out_of_its_table() -> None:
    widths: set[int] = set()
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            assert len(widths) <= 1
            widths.clear()
        else:
            widths.add(len(re.findall(r"(?<!\\)\|", line)))
