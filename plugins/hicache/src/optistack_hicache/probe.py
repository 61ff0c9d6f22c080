"""Does KV reach the tiers below the device, and has it come back from them?

Writing can be shown at once: a new prompt is copied to the host. Reading shows only when the device has evicted the
prompt and it is asked for again, which a few small requests do not bring about; so hits are what the counters say, and
unproven while they are at zero.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optistack.errors import CheckFailedError
from optistack.verify.receipt import CheckResult, Status
from optistack.versions import at_least
from optistack_hicache.sizing import host_kv

if TYPE_CHECKING:
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.metrics import Metrics

DEADLINE_S = 15.0
POLL_S = 0.2
PROMPT_WORDS = 600
TOKENS_TOLERANCE = 0.03
STORES = "a new prompt is copied to the host tier"


@dataclass(frozen=True)
class Counters:
    """An engine's metrics for the tiers: ``host`` says that there is a host tier, the others move when it works.

    Several names for one thing are versions of the engine. ``silent_zero``: a counter appears when it first moves.
    ``storage_since``: the first version that counts what storage writes and reads.
    """

    host: tuple[str, ...]
    stores: tuple[str, ...]
    loads: tuple[str, ...]
    storage_writes: tuple[str, ...]
    storage_reads: tuple[str, ...]
    silent_zero: bool
    storage_since: str = "0"


COUNTERS = {
    "sglang": Counters(
        host=("sglang:hicache_host_total_tokens",),
        stores=("sglang:hicache_backup_tokens_total", "sglang:hicache_host_used_tokens"),
        loads=("sglang:load_back_tokens_total",),
        storage_writes=("sglang:backuped_tokens_total",),
        storage_reads=("sglang:prefetched_tokens_total",),
        silent_zero=True,
    ),
    "vllm": Counters(
        host=("vllm:kv_offload_store_bytes_total", "vllm:kv_offload_config_info"),
        stores=("vllm:kv_offload_store_bytes_total",),
        loads=("vllm:kv_offload_load_bytes_total",),
        storage_writes=("vllm:kv_offload_tiering_write_bytes_total",),
        storage_reads=("vllm:kv_offload_tiering_read_bytes_total",),
        silent_zero=False,
        storage_since="0.33",
    ),
}


def probe(plan: Plan, endpoint: Endpoint) -> list[CheckResult]:
    """The checks of the module's title. Sends one prompt of about a thousand tokens, three times if copying is
    selective."""
    host = plan.stack.tier(2)
    if host is None:
        return []
    names = COUNTERS.get(plan.engine.backend)
    if names is None or host.backend.value != "native":
        return [_unproven(f"the counters of {host.backend.value} on {plan.engine.backend} are not known")]
    before = endpoint.metrics()
    if not before.samples:
        return [_unproven("the engine shows no metrics page")]
    try:
        _send(plan, endpoint, times=3 if host.write_policy.value == "write_through_selective" else 1)
    except CheckFailedError as error:
        return [_result("host-stores", Status.FAIL, STORES, "an error", why=str(error))]
    after = _when(endpoint, lambda metrics: _shown(metrics, names.host))
    if not _shown(after, names.host):
        proof = f"/metrics without {' or '.join(names.host)}"
        return [_result("host-stores", Status.FAIL, STORES, "no host tier", proof=proof)]
    return [*_host_tokens(plan, after), *_writes(plan, names, before, endpoint), *_reads(plan, names, endpoint)]


def _when(endpoint: Endpoint, ready: Callable[[Metrics], bool]) -> Metrics:
    """The metrics as soon as they are ``ready``, or time is up: copies run behind the answer, and vLLM 0.26 with a
    storage tier shows none of its names before the first.

    vLLM publishes with a step of the engine, so an idle one may keep to itself what it copied after its last step:
    after half of the time a word is sent to make it step.
    """
    start = time.monotonic()
    stepped = False
    while True:
        metrics = endpoint.metrics()
        waited_s = time.monotonic() - start
        if ready(metrics) or waited_s >= DEADLINE_S:
            return metrics
        if not stepped and waited_s >= DEADLINE_S / 2:
            stepped = True
            with suppress(CheckFailedError):
                endpoint.complete("1", max_tokens=2)
        time.sleep(POLL_S)


def _shown(metrics: Metrics, names: tuple[str, ...]) -> bool:
    return any(metrics.has(name) for name in names)


def _host_tokens(plan: Plan, metrics: Metrics) -> Iterator[CheckResult]:
    """SGLang says how many tokens its host pool holds, on each rank."""
    found = metrics.find("sglang:hicache_host_total_tokens")
    host = plan.stack.tier(2)
    if not found or host is None or host.capacity_bytes.value is None:
        return
    kv = host_kv(plan.model, plan.stack, plan.engine, plan.spec.parallel)
    planned = kv.tokens(host.capacity_bytes.value) // kv.groups
    seen = int(found[0].value)
    close = abs(seen - planned) <= TOKENS_TOLERANCE * planned
    yield _result(
        "host-tokens",
        Status.PASS if close else Status.FAIL,
        f"{planned:,} tokens in the host tier",
        f"{seen:,} tokens",
        proof=f"{found[0].name} {found[0].value:g}",
        why=f"{(seen - planned) / planned:+.2%} of the plan, {TOKENS_TOLERANCE:.0%} allowed",
    )


def _writes(plan: Plan, names: Counters, before: Metrics, endpoint: Endpoint) -> Iterator[CheckResult]:
    host, storage = plan.stack.tier(2), plan.stack.tier(3)
    if host is not None and host.write_policy.value == "write_back":
        yield _unproven("with write_back KV is copied when the device evicts it, which this check does not bring about")
        return
    yield _moved("host-stores", STORES, names.stores, before, endpoint, absent_fails=names.silent_zero)
    if storage is not None:
        asked = "a new prompt is written to the storage tier"
        if not at_least(plan.engine.version, names.storage_since):
            yield _uncounted("storage-writes", asked, plan, names, names.storage_writes)
            return
        yield _moved("storage-writes", asked, names.storage_writes, before, endpoint, absent_fails=names.silent_zero)


def _reads(plan: Plan, names: Counters, endpoint: Endpoint) -> Iterator[CheckResult]:
    metrics = endpoint.metrics()
    yield _hits("host-hits", "KV comes back from the host tier", names.loads, metrics)
    if plan.stack.tier(3) is None:
        return
    asked = "KV comes back from the storage tier"
    if at_least(plan.engine.version, names.storage_since):
        yield _hits("storage-hits", asked, names.storage_reads, metrics)
    else:
        yield _uncounted("storage-hits", asked, plan, names, names.storage_reads)


def _send(plan: Plan, endpoint: Endpoint, *, times: int) -> None:
    """A prompt that no cache can know, within the engine's context."""
    context = plan.stack.serving.context_tokens.value or 4096
    words = max(8, min(PROMPT_WORDS, context // 8))
    start = uuid.uuid4().int
    prompt = " ".join(str((start >> (number % 96)) % 1000) for number in range(words))
    for _ in range(times):
        endpoint.complete(prompt, max_tokens=1)


def _moved(
    check: str, asked: str, names: tuple[str, ...], before: Metrics, endpoint: Endpoint, *, absent_fails: bool
) -> CheckResult:
    """PASS as soon as one of ``names`` is above where it was. It need not be by this check's own prompt: whoever's was
    copied, copying works."""

    def grown(metrics: Metrics) -> dict[str, float]:
        rises = {name: _rise(before, metrics, name) for name in names}
        return {name: rise for name, rise in rises.items() if rise > 0}

    metrics = _when(endpoint, lambda metrics: bool(grown(metrics)))
    for name, rise in grown(metrics).items():
        return _result(check, Status.PASS, asked, f"{rise:,.0f} {_unit(name)}", proof=f"{name} +{rise:g}")
    if not absent_fails and not _shown(metrics, names):
        why = f"this version does not publish {', '.join(names)}"
        return _result(check, Status.UNPROVEN, asked, "nothing", why=why)
    proof = f"{' and '.join(names)} did not move in {DEADLINE_S:g} s"
    return _result(check, Status.FAIL, asked, "nothing was copied", proof=proof)


def _hits(check: str, asked: str, names: tuple[str, ...], metrics: Metrics) -> CheckResult:
    for name in names:
        value = _value(metrics, name)
        if value:
            says = f"{value:,.0f} {_unit(name)} so far"
            return _result(check, Status.PASS, asked, says, proof=f"{name} {value:g}")
    why = "nothing has come back yet: KV that is still on the device is not read from below"
    return _result(check, Status.UNPROVEN, asked, "nothing so far", proof=", ".join(names), why=why)


def _uncounted(check: str, asked: str, plan: Plan, names: Counters, missing: tuple[str, ...]) -> CheckResult:
    """A counter that a version does not have says nothing, which is not that nothing happened."""
    engine = plan.engine
    why = (
        f"{engine.backend} {engine.version} has no {', '.join(missing)}: only {names.storage_since} and later count it"
    )
    return _result(check, Status.UNPROVEN, asked, "nothing", why=why)


def _rise(before: Metrics, after: Metrics, name: str) -> float:
    """By how much the sample called ``name`` that moved most did: one engine of several on a port serves a prompt."""
    then = {tuple(sorted(sample.labels.items())): sample.value for sample in before.find(name)}
    rises = (sample.value - then.get(tuple(sorted(sample.labels.items())), 0.0) for sample in after.find(name))
    return max(rises, default=0.0)


def _value(metrics: Metrics, name: str) -> float | None:
    """The largest sample called ``name``: every rank of SGLang reports the same logical count under its own labels."""
    return max((sample.value for sample in metrics.find(name)), default=None)


def _unproven(why: str) -> CheckResult:
    return _result("host-stores", Status.UNPROVEN, STORES, "nothing", why=why)


def _unit(name: str) -> str:
    return "bytes" if "bytes" in name else "tokens"


def _result(check: str, status: Status, asked: str, says: str, *, proof: str = "", why: str = "") -> CheckResult:
    return CheckResult(
        id=f"hicache/{check}",
        promised_by="hicache",
        asked=asked,
        engine_says=says,
        proof=proof,
        status=status,
        why=why,
    )
