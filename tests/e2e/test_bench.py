"""The benchmark against a real vLLM: tokens as asked, hits as the workload allows, engine and usage of one mind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import LAPTOP, ON_VLLM, Optistack

pytestmark = pytest.mark.engine

PAGE_TOKENS = 128


@pytest.fixture(scope="module")
def engine(optistack: Optistack) -> Iterator[str]:
    without = ("--no-plugin", "kv-fp8", "--set", "name=benched")
    result = optistack("apply", *ON_VLLM, "--stack", LAPTOP, *without, "--no-verify", "--json")
    assert result.code == 0, result.err
    yield str(result.json()["endpoints"][0])
    optistack("down", "benched")


def test_sessions_find_what_they_have_sent(optistack: Optistack, engine: str, tmp_path: Path) -> None:
    words = ["--users", "2", "--sessions", "2", "--turns", "2", "--divide", "64", "--think-limit", "0"]
    out = tmp_path / "out"
    result = optistack("bench", "--endpoint", engine, *words, "--repeats", "1", "--out", out, "--json")
    assert result.code == 0, result.err
    (point,) = result.json()["points"]
    (repeat,) = point["repeats"]
    figures = repeat["figures"]
    assert (figures["requests"], figures["errors"], figures["hits_agree"], figures["foreign_hits"]) == (4, 0, 1, 0)
    assert figures["acceptance_length"] >= 1
    assert set(repeat["by_domain"]) == {"code", "prose"}
    for session in repeat["sessions"]:
        # The engine keeps whole pages only, and under speculation computes the last of them again.
        assert session["reusable_tokens"] - 2 * PAGE_TOKENS < session["cached_tokens"] <= session["reusable_tokens"]
    lines = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert all(line["output_tokens"] == line["asked_tokens"] for line in lines)
