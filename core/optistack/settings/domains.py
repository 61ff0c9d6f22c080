"""The typed settings that plugins return, one class for each domain, and the engine-wide ones.

Words are the field's own and engine-neutral; an adapter turns them into flags. A field left alone means "no opinion".
Anything an adapter has no word for goes into ``arguments``, with its reason, so a new kind of plugin (another drafter,
another KV format) needs no change here.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from optistack.settings.values import Value

Unset: Any = Field(default_factory=Value)


class MemoryCharge(BaseModel):
    """Memory that a plugin's work takes, for the budget.

    ``per_gpu_bytes`` is fixed on each GPU (already divided by tensor parallelism), ``per_kv_token_bytes`` is charged on
    each GPU for each KV token the pool holds, ``host_bytes`` is host RAM for one replica. ``while_serving`` is memory
    that is taken after the engine has sized its pool, such as buffers of a forward pass. ``weights`` is a draft's or
    another model's, which the engine loads and measures with its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    per_gpu_bytes: NonNegativeInt = 0
    per_kv_token_bytes: NonNegativeInt = 0
    host_bytes: NonNegativeInt = 0
    while_serving: bool = False
    weights: bool = False
    why: str = ""
    reference: str = ""
    source: str = ""


class EngineArgument(BaseModel):
    """A flag or an environment variable for one backend that the adapter itself has no word for.

    ``name`` is the flag with its dashes (``--some-flag``) or, with ``env=True``, the variable. ``value`` ``None`` is a
    flag without a value. ``versions`` is a PEP 440 specifier of the engine versions that have it (empty: all).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    name: str
    value: str | None = None
    env: bool = False
    versions: str = ""
    why: str
    reference: str = ""
    source: str = ""

    @field_validator("versions")
    @classmethod
    def _specifier(cls, versions: str) -> str:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            SpecifierSet(versions)
        except InvalidSpecifier as error:
            raise ValueError(f"{versions!r} is no version specifier such as '>=0.30,<0.33'") from error
        return versions

    @model_validator(mode="after")
    def _flag_or_variable(self) -> EngineArgument:
        if self.env and not self.name.isidentifier():
            raise ValueError(f"{self.name!r} is no name of an environment variable")
        if not self.env and not self.name.startswith("-"):
            raise ValueError(f"{self.name!r} is no flag: write it with its dashes, or set env for a variable")
        return self


class Settings(BaseModel):
    """Base of everything a domain hook returns. The host fills in ``source`` of charges and arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    charges: tuple[MemoryCharge, ...] = ()
    arguments: tuple[EngineArgument, ...] = ()
    serving: Serving | None = None


class Serving(BaseModel):
    """Settings of the engine as a whole. Any plugin may have an opinion on them through ``Settings.serving``.

    ``prefill_attention_backend``  the attention kernels for prompts, where they are others than for decoding
    ``cuda_graph_max_batch``  the largest batch of decoding that a CUDA graph is captured for
    ``metrics``  the engine publishes its counters at /metrics
    ``cache_report``  an answer's usage tells how many prompt tokens came from the prefix cache
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attention_backend: Value[str] = Unset
    prefill_attention_backend: Value[str] = Unset
    context_tokens: Value[int] = Unset
    max_running_requests: Value[int] = Unset
    chunked_prefill_tokens: Value[int] = Unset
    prefix_caching: Value[bool] = Unset
    schedule_policy: Value[str] = Unset
    cuda_graphs: Value[bool] = Unset
    cuda_graph_max_batch: Value[int] = Unset
    metrics: Value[bool] = Unset
    cache_report: Value[bool] = Unset


class WeightQuantization(Settings):
    """What the checkpoint's weights are and which kernels run them.

    ``checkpoint_format``  ``modelopt``, ``compressed-tensors``, ... or ``none``
    ``experts``, ``shared_experts``, ``dense``  precision word by component: ``nvfp4``, ``fp8``, ``int4``, ``bf16``
    ``engine_quantization``  the word to pass to the engine; normally unset, the engine reads the checkpoint
    ``moe_backend``  the kernels that run the experts
    ``fp4_gemm_backend``  the kernels of FP4 matrix products
    """

    checkpoint_format: Value[str] = Unset
    experts: Value[str] = Unset
    shared_experts: Value[str] = Unset
    dense: Value[str] = Unset
    engine_quantization: Value[str] = Unset
    moe_backend: Value[str] = Unset
    fp4_gemm_backend: Value[str] = Unset


class KVLayout(Settings):
    """How KV is laid out in device memory.

    ``dtype``, ``draft_dtype``  ``bfloat16``, ``fp8_e4m3``, ... (``auto`` is not an answer: a plan says what it is)
    ``page_size_tokens``  tokens in a KV page (SGLang's page size, vLLM's block size)
    ``scales``  where FP8 scales come from: ``checkpoint``, ``file`` (``scales_file``) or ``unit`` (1.0)
    ``scales_file``  the file of FP8 scales
    """

    dtype: Value[str] = Unset
    draft_dtype: Value[str] = Unset
    page_size_tokens: Value[PositiveInt] = Unset
    scales: Value[str] = Unset
    scales_file: Value[str] = Unset


class Speculation(Settings):
    """Speculative decoding.

    ``method``  a free word: ``dflash``, ``eagle3``, ``ngram``, ...
    ``draft_checkpoint``  the drafter: a folder or a hub id
    ``num_draft_tokens``  tokens proposed in each step, the bonus token not counted
    ``draft_quantization``  the word for the drafter's weights to pass to the engine
    ``draft_attention_backend``  the attention kernels of the drafter
    ``draft_window_tokens``  how far back the drafter's attention looks
    """

    method: Value[str] = Unset
    draft_checkpoint: Value[str] = Unset
    num_draft_tokens: Value[int] = Unset
    draft_quantization: Value[str] = Unset
    draft_attention_backend: Value[str] = Unset
    draft_window_tokens: Value[int] = Unset


class CacheTier(Settings):
    """One tier of KV cache below the device's. Tiers are merged by ``level``.

    ``level``  2 for host RAM, 3 for storage
    ``backend``  ``native``, ``file``, ``mooncake``, ``nixl``, ``lmcache``, ...
    ``capacity_bytes``  of one replica, over all of its ranks
    ``key``  what tells apart directories whose bytes differ (model, dtype, page size, layout, engine version)
    ``write_policy``  when KV is copied to the tier: ``write_through``, ``write_back``, ...
    ``layout``  how pages lie in the tier
    ``io_backend``  what copies between device and host: ``kernel`` or ``direct``
    ``directory``  the folder of a tier of files
    ``prefetch_policy``  how long a request waits for its KV to come back: ``best_effort``, ``timeout``, ...
    ``extra_config``  further keys for the tier's backend, as the engine takes them
    """

    level: Literal[2, 3]
    backend: Value[str] = Unset
    capacity_bytes: Value[int] = Unset
    write_policy: Value[str] = Unset
    layout: Value[str] = Unset
    io_backend: Value[str] = Unset
    directory: Value[str] = Unset
    key: Value[str] = Unset
    prefetch_policy: Value[str] = Unset
    extra_config: Value[dict[str, Any]] = Unset


class Routing(Settings):
    """How requests are spread over replicas.

    ``front``  a process of the plugin stands before the replicas and is the deployment's one address
               (``optistack_front``); the engines listen on loopback only
    ``precise``  the router follows what each replica's KV cache holds, by the events that the engine publishes
    ``overload_margin``  requests that a replica may carry above another before a session leaves its KV for that one
    ``parameters``  further numbers of the policy, by their names there
    ``policy``  how a replica is chosen: ``kv-aware``, ``affinity``, ``least-loaded``, ``round-robin`` or ``random``
    ``session_header``  the HTTP header that names a request's session
    ``target_concurrency``  requests meant to run on one replica at once
    ``max_homes``  replicas on which a session's KV is remembered
    ``session_idle_s``  seconds after its last request until a session is forgotten
    """

    front: Value[bool] = Unset
    policy: Value[str] = Unset
    session_header: Value[str] = Unset
    target_concurrency: Value[int] = Unset
    max_homes: Value[int] = Unset
    overload_margin: Value[float] = Unset
    session_idle_s: Value[float] = Unset
    precise: Value[bool] = Unset
    parameters: Value[dict[str, Any]] = Unset


Settings.model_rebuild()
