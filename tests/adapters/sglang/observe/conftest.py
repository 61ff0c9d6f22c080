"""An engine that says what sglang 0.5.23 would of the reference deployment, in its fields, metrics and log lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import Observed
from optistack_adapters.sglang import backend

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Engine:
    """What the engine's endpoints and its log say. ``None`` is a route or a log that is not there."""

    info: dict[str, Any] | None
    metrics: str | None
    log: str | None

    def but(self, **changes: Any) -> dict[str, Any]:
        """The information with some fields changed."""
        return {**(self.info or {}), **changes}

    def observe(self, info: Any = ..., *, metrics: Any = ..., log: Any = ...) -> Mapping[str, Observed]:
        """What the adapter makes of it; what is given replaces the engine's own."""
        info = self.info if info is ... else info
        metrics = self.metrics if metrics is ... else metrics
        log = self.log if log is ... else log
        pages = {
            "/server_info": None if info is None else json.dumps(info),
            "/model_info": json.dumps({"architectures": ["KimiK25ForConditionalGeneration"]}),
            "/metrics": metrics,
        }

        def answer(request: httpx.Request) -> httpx.Response:
            page = pages.get(request.url.path)
            return httpx.Response(404) if page is None else httpx.Response(200, text=page)

        with Endpoint("http://engine", transport=httpx.MockTransport(answer)) as endpoint:
            return backend.observe(endpoint, log)

    def values(self, info: Any = ..., *, metrics: Any = ..., log: Any = ...) -> dict[str, Any]:
        seen = self.observe(info, metrics=metrics, log=log)
        return {path: observed.value for path, observed in seen.items()}


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine(
        info=json.loads((DATA / "server_info.json").read_text()),
        metrics=(DATA / "metrics.txt").read_text(),
        log=(DATA / "engine.log.txt").read_text(),
    )
