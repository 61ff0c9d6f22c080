"""Which model is served, under which name, and what a client gets to see."""

from __future__ import annotations

from optistack.backend import RenderRequest
from optistack.launch import PORT
from optistack_adapters.base import USER, LaunchBuilder


def add_model(build: LaunchBuilder, request: RenderRequest) -> None:
    """Checkpoint, names, parsers, address."""
    spec = request.spec
    serving = spec.serving
    build.flag("--model-path", spec.model.checkpoint, source=USER, why="model.checkpoint")
    if spec.model.revision:
        build.flag("--revision", spec.model.revision, source=USER, why="model.revision")
    if spec.model.served_name:
        build.flag("--served-model-name", spec.model.served_name, source=USER, why="model.served_name")
    if spec.model.trust_remote_code:
        build.flag("--trust-remote-code", source=USER, why="model.trust_remote_code")
    build.carry("--context-length", "serving.context_tokens", request.stack.serving.context_tokens)
    if serving.reasoning_parser:
        build.flag("--reasoning-parser", serving.reasoning_parser, source=USER, why="serving.reasoning_parser")
    if serving.tool_call_parser:
        build.flag("--tool-call-parser", serving.tool_call_parser, source=USER, why="serving.tool_call_parser")


def add_address(build: LaunchBuilder, request: RenderRequest) -> None:
    build.flag("--host", request.spec.serving.host, source=USER, why="serving.host")
    build.flag("--port", PORT, source="plan", why="chosen when the engine starts")
