"""Two real replicas behind the router: a session that finds its KV, and outlives the replica that held it."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.e2e.conftest import ON_VLLM, ROOT, Optistack
from tests.e2e.polling import until

from optistack.apply.child import marked_process
from optistack.apply.processes import marked

pytestmark = pytest.mark.engine

FLEET = ROOT / "stacks" / "laptop-fleet.yaml"
PAGE_TOKENS = 128

PROVEN = (
    "routing/replicas",
    "routing.front",
    "routing.policy",
    "routing.session_header",
    "routing.max_homes",
    "routing.overload_margin",
    "routing.session_idle_s",
    "routing.precise",
    "routing/session-stays",
    "routing/predictions",
)
"""What the router's receipt must prove."""


@pytest.fixture(scope="module")
def applied(optistack: Optistack) -> Iterator[dict[str, Any]]:
    result = optistack("apply", *ON_VLLM, "--stack", FLEET, "--json")
    assert result.code == 0, result.err
    yield result.json()
    optistack("down", "laptop-fleet")


@dataclass
class Session:
    """A conversation over the deployment's one address."""

    url: str
    name: str
    messages: list[dict[str, str]] = field(default_factory=list)

    def turn(self, text: str, *, tokens: int = 16) -> dict[str, Any]:
        """Say ``text``; the usage of the answer. Raises for any status but 200."""
        self.messages.append({"role": "user", "content": text})
        body = {"model": "smollm2-135m", "messages": self.messages, "max_tokens": tokens, "temperature": 0}
        headers = {"Content-Type": "application/json", "X-Session-Id": self.name}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            said = json.load(answer)
        self.messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"]})
        usage: dict[str, Any] = said["usage"]
        return usage


def cached_tokens(usage: dict[str, Any]) -> int:
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def status(optistack: Optistack) -> dict[str, Any]:
    (entry,) = optistack("status", "laptop-fleet", "--json").json()["deployments"]
    return dict(entry)


def served(url: str, name: str = "vllm:request_success_total") -> float:
    """Requests that the replica at ``url`` has answered."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_every_replica_and_the_router_have_a_receipt(applied: dict[str, Any]) -> None:
    assert [receipt["replica"] for receipt in applied["receipts"]] == [0, 1, None]
    router = {line["id"]: line["status"] for line in applied["receipts"][-1]["results"]}
    assert {name: router[name] for name in PROVEN} == dict.fromkeys(PROVEN, "pass")
    assert not [line for receipt in applied["receipts"] for line in receipt["results"] if line["status"] == "fail"]


def test_a_session_finds_its_kv_and_outlives_its_replica(optistack: Optistack, applied: dict[str, Any]) -> None:
    (url,) = applied["endpoints"]
    replicas = [process for process in status(optistack)["processes"] if process["name"].startswith("replica")]
    before = [served(replica["url"]) for replica in replicas]
    session = Session(url, "a-session")
    first = session.turn("Tell me about rivers. " * 120)
    second = session.turn("And about lakes?")
    assert cached_tokens(first) < PAGE_TOKENS
    assert cached_tokens(second) >= first["prompt_tokens"] - PAGE_TOKENS
    moved = [served(replica["url"]) - count for replica, count in zip(replicas, before, strict=True)]
    assert sorted(moved) == [0.0, 2.0]

    home = replicas[moved.index(2.0)]
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(session.turn, "Count to a thousand.", tokens=400)
        until(lambda: running(home["url"]) > 0, timeout_s=60, interval_s=0.02)
        os.kill(home["pid"], signal.SIGKILL)
        third = under_way.result()  # it had no first byte yet, so the other replica has answered it
    fourth = session.turn("Thank you.")
    assert third["completion_tokens"] > 0
    assert cached_tokens(fourth) >= third["prompt_tokens"] - PAGE_TOKENS

    until(lambda: lost(optistack, home["name"]), timeout_s=30)
    entry = status(optistack)
    (gone,) = [process for process in entry["processes"] if process["name"] == home["name"]]
    assert (entry["phase"], gone["exit_code"], gone["ready"]) == ("ready", -signal.SIGKILL, False)
    assert "SIGKILL" in gone["reason"]
    until(lambda: not marked_process(entry["id"], home["name"]), timeout_s=30)
    assert f"without {home['name']}" in optistack("status").out


def running(url: str) -> float:
    return served(url, "vllm:num_requests_running")


def lost(optistack: Optistack, name: str) -> bool:
    return any(process["name"] == name and process["reason"] for process in status(optistack)["processes"])


def test_down_leaves_nothing(optistack: Optistack, applied: dict[str, Any]) -> None:
    entry = status(optistack)
    assert marked(entry["id"])
    assert optistack("down", "laptop-fleet").code == 0
    assert not marked(entry["id"])
