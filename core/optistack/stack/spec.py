"""``StackSpec``: what the user wrote in the stack file, validated. It says what is wanted; nothing is resolved yet."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_LONGEST_HOST = 253
"""Characters of a host name, RFC 1123 and 1035."""


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _host(text: str) -> str:
    if _is_address(text):
        return text
    labels = text.removesuffix(".").split(".")
    # The last label of a name is no number: that is an address with a slip of the pen.
    named = all(_HOST_LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit()
    if not named or len(text) > _LONGEST_HOST:
        raise ValueError(f"{text!r} is neither an address nor the name of a host")
    return text


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``, an address or a name."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


Text = Annotated[str, AfterValidator(_not_empty)]
"""Text that says something: an empty one comes of a variable that was not set."""

Host = Annotated[str, AfterValidator(_host)]


class _Section(BaseModel):
    """Strict: ``tensor: yes`` or ``tensor: "4"`` is a slip of the pen, not the number 1 or 4."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSection(_Section):
    """Which checkpoint to serve."""

    checkpoint: Text = Field(
        description="A folder (relative to this file), a hub id such as org/name, or cache:NAME for a checkpoint made "
        "by `optistack model fetch NAME`. ~ and $VARIABLES are expanded."
    )
    revision: Text | None = Field(None, description="Revision of a hub id; its default branch when not given.")
    config: Text | None = Field(
        None,
        description="A folder or config.json with the model's shape, used for planning where the checkpoint is not on "
        "this machine. Relative to this file.",
    )
    served_name: Text | None = Field(None, description="The name that clients ask for.")
    trust_remote_code: bool = Field(False, description="Let the engine run code that comes with the checkpoint.")


class WorkloadSection(_Section):
    """What the replica will be asked to do."""

    input_tokens: int = Field(4096, gt=0, description="Prompt tokens of a request, shared prefix included.")
    output_tokens: int = Field(512, gt=0, description="Generated tokens of a request.")
    concurrency: int = Field(5, gt=0, description="Requests in flight on one replica at the same time.")
    turns: int = Field(1, gt=0, description="Requests of a session.")


class ParallelSection(_Section):
    """How one replica is spread over GPUs, and how many replicas this node runs."""

    tensor: int = Field(1, gt=0, description="Tensor-parallel size of a replica (TP).")
    expert: int = Field(1, gt=0, description="Expert-parallel size of a replica (EP).")
    attention_data: int = Field(1, gt=0, description="Data-parallel attention ranks inside a replica.")
    replicas: int = Field(1, gt=0, description="Replicas on this node.")

    def of_group(self, requests: int) -> int:
        """Requests of one attention group where a replica has ``requests``, rounded up to whole ones."""
        return -(-requests // self.attention_data)

    def for_all_groups(self, requests: int) -> int:
        """``requests`` of a replica, rounded up so that each attention group has equally many."""
        return self.of_group(requests) * self.attention_data


class EngineSection(_Section):
    """Which engine runs the stack."""

    version: Text | None = Field(None, description="Engine version to plan for when none is installed here.")
    python: Text | None = Field(None, description="Python of the engine's own environment.")
    image: Text | None = Field(None, description="Container image for the rendered script.")


class ServingSection(_Section):
    """Settings of the engine as a whole; a key that is absent is decided by the plugins, the plan or the engine."""

    host: Host = Field("127.0.0.1", description="Address to listen on.")
    port: int | None = Field(None, ge=1, le=65535, description="Port; a free one is picked when not given.")
    context_tokens: int | None = Field(None, gt=0, description="Longest prompt plus output.")
    max_running_requests: int | None = Field(None, gt=0, description="Requests that decode at the same time.")
    chunked_prefill_tokens: int | None = Field(None, gt=0, description="Prefill tokens in one forward pass.")
    attention_backend: Text | None = Field(None, description="Attention kernels, in the engine's word.")
    schedule_policy: Text | None = Field(None, description="Order of waiting requests, in the engine's word.")
    prefix_caching: bool | None = Field(None, description="Reuse the KV of equal prefixes; on unless switched off.")
    cuda_graphs: bool | None = Field(None, description="Capture CUDA graphs; the engine's default when not given.")
    reasoning_parser: Text | None = Field(None, description="Splits reasoning from the answer.")
    tool_call_parser: Text | None = Field(None, description="Reads tool calls from the answer.")
    kv_memory_gib: float | None = Field(
        None, gt=0, le=1e6, description="Size of the KV pool of each rank; needed on CPU."
    )
    dev_endpoints: bool = Field(
        False, description="Open the engine's development endpoints, which prove more. Only on a loopback address."
    )
    ready_timeout_s: float = Field(1800.0, gt=0, description="How long the engine may take to come up.")

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach ``host``."""
        return is_loopback(self.host)


class StackSpec(_Section):
    """A stack file."""

    version: Literal[1] = Field(1, description="Version of this file's format.")
    name: str = Field(
        "optistack", pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64, description="Name of the deployment."
    )
    model: ModelSection
    node: Text = Field("detect", description="A node preset such as b200x4, or detect.")
    backend: Text | None = Field(
        None, description="sglang, vllm, or another that is installed.", examples=["sglang", "vllm"]
    )
    engine: EngineSection = EngineSection()
    parallel: ParallelSection = ParallelSection()
    workload: WorkloadSection = WorkloadSection()
    serving: ServingSection = ServingSection()
    plugins: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Plugins to use, by name, each with its options."
    )
    engine_args: tuple[str, ...] = Field(
        (), strict=False, description="Arguments handed to the engine as they are, after ours."
    )
