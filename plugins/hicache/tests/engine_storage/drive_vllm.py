"""vLLM's own tiers in host RAM and files, without a GPU above them: what they make of damaged files.

Run by an engine's Python: ``python drive_vllm.py FOLDER [SMALL_FOLDER]``. Prints one JSON object. ``FOLDER`` is empty;
``SMALL_FOLDER`` lies on a file system with less room than the chunks that are written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import mmap
import multiprocessing
import os
import sys
import time
import types
from pathlib import Path

import numpy as np
from vllm.v1.kv_offload import config as offload
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.tiering import manager as tiering
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

CHUNKS, CHUNK_BYTES = 64, 8192
STEPS = 400
"""Scheduler steps, about 5 ms each, that a request is watched for."""


def fill(cls: type, **given: object) -> object:
    """An instance of a dataclass with what of ``given`` this version knows."""
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in given.items() if name in names})


class Engine:
    """Both tiers of one engine. ``dtype`` and ``model`` are what vLLM tells folders apart by."""

    def __init__(self, folder: Path, *, dtype: str = "bfloat16", model: str = "org/model") -> None:
        bytes_ = CHUNK_BYTES
        # Whole pages, as the engine's own shared memory: it reads and writes files past the page cache.
        self.memory = np.frombuffer(mmap.mmap(-1, CHUNKS * bytes_), dtype=np.int8).reshape(CHUNKS, bytes_)
        region = types.SimpleNamespace(
            create_kv_memoryview=lambda: memoryview(self.memory), cleanup=lambda: None, kv_bytes_per_chunk=bytes_
        )
        parallel = fill(
            offload.OffloadingParallelConfig, rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1,
            data_parallel_index=0, data_parallel_size=1, data_parallel_rank_local=None, is_parallelism_agnostic=False,
        )  # fmt: skip
        blocks = {"blocks_per_chunk": 1, "block_size_factor": 1}
        config = fill(
            offload.OffloadingConfig,
            groups=(fill(offload.OffloadingGroupConfig, tokens_per_block=16, layer_names=("layer",), group_id=0),),
            worker_kv_bytes_per_block=bytes_, enable_kv_cache_events=False, extra_config={}, engine_id="engine",
            model=fill(offload.OffloadingModelConfig, name=model, dtype=dtype),
            cache=fill(offload.OffloadingCacheConfig, tokens_per_hash=16, **blocks), parallel=parallel,
        )  # fmt: skip
        spec = types.SimpleNamespace(
            config=config, kv_events_config=types.SimpleNamespace(enable_kv_cache_events=False), **blocks
        )
        self.tier = FileSystemTierManager(spec, memoryview(self.memory), "fs", str(folder))
        primary = tiering.CPUPrimaryTierOffloadingManager(CHUNKS, region)
        self.manager = tiering.TieringOffloadingManager(primary, [self.tier])

    def request(self, name: str) -> ReqContext:
        request = ReqContext(req_id=name)
        self.manager.on_new_request(request)
        return request

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
        time.sleep(0.005)

    def ids(self, spec: object) -> list[int]:
        return [int(one) for one in getattr(spec, "chunk_ids", getattr(spec, "block_ids", ()))]

    def store(self, numbers: list[int]) -> None:
        """Put chunks into host RAM, from where they go to files, and wait until they are written or refused."""
        request = self.request(f"store {numbers}")
        keys = [key(number) for number in numbers]
        taken = self.manager.prepare_store(keys, request)
        for number, slot in zip(numbers, self.ids(taken.store_spec), strict=True):
            self.memory[slot] = chunk(number)
        self.manager.complete_store(keys, request)
        self.manager.on_request_finished(request)
        for _ in range(STEPS):
            self.step()
            self.manager._maybe_process_finished_jobs()
            if not getattr(self.manager, "_transfer_jobs", getattr(self.manager, "_jobs", None)):
                return

    def load(self, number: int, *, meanwhile: object = None) -> str:
        """``kv`` the chunk that was written; ``miss``; ``wrong kv``; or that the request waits forever.

        ``meanwhile`` is called between vLLM's look at the file's name and its reading.
        """
        request = self.request(f"load {number}")
        for _ in range(STEPS):
            result = self.manager.lookup(key(number), request)
            if result in (LookupResult.HIT, LookupResult.MISS):
                break
            if meanwhile is not None and self.tier._lookup_manager._lookup_state[key(number)].result:
                meanwhile()
                meanwhile = None
            self.step()
        else:
            return f"the request waits: no answer in {STEPS} scheduler steps"
        if result is LookupResult.MISS:
            return "miss"
        slots = self.ids(self.manager.prepare_load([key(number)], request))
        same = bool((self.memory[slots[0]] == chunk(number)).all())
        return "kv" if same else "wrong kv"


def key(number: int) -> bytes:
    return make_offload_key(hashlib.sha256(str(number).encode()).digest(), 0)


def chunk(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(-128, 127, CHUNK_BYTES, dtype=np.int8)


def name_of(number: int) -> str:
    return f"{hashlib.sha256(str(number).encode()).hexdigest()}.bin"


def file_of(folder: Path, number: int) -> Path:
    return next(folder.rglob(name_of(number)))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)


def damage(folder: Path) -> dict[str, str]:
    engine = Engine(folder)
    engine.store(list(range(1, 9)))
    after = Engine(folder)
    says = {"after a restart": after.load(1), "name": str(file_of(folder, 1).relative_to(folder))}
    file_of(folder, 2).unlink()
    says["removed"] = after.load(2)
    says["removed between look-up and read"] = after.load(3, meanwhile=lambda: file_of(folder, 3).unlink())
    file = file_of(folder, 4)
    os.truncate(file, CHUNK_BYTES // 2)
    says["half"] = after.load(4)
    says["half, file afterwards"] = "there" if file.exists() else "removed"
    says["half, next request"] = after.load(4)
    os.truncate(file_of(folder, 5), 0)
    says["empty"] = after.load(5)
    flip(file_of(folder, 6))
    says["one bit flipped"] = after.load(6)
    file = file_of(folder, 7)
    file.write_bytes(file.read_bytes() + b"m" * CHUNK_BYTES)
    says["twice as long"] = after.load(7)
    says["whole"] = after.load(8)
    return says


def mixtures(folder: Path) -> dict[str, str]:
    Engine(folder).store([21, 22, 23])

    return {
        "another KV dtype": Engine(folder, dtype="fp8_e4m3").load(21),
        "another model name": Engine(folder, model="org/other").load(22),
        "another checkpoint, layout or scales of the same name": "the same files: "
        + Engine(folder).load(23).replace("kv", "the other one's kv"),
    }


def shared(folder: Path) -> dict[str, object]:
    """Two engines write the same chunks to one folder at once, look for each other's the while, and read them then."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    ends = [context.Pipe(duplex=False) for _ in range(2)]
    for number, end in enumerate(ends):
        context.Process(target=peer, args=(folder, number, barrier, end[1]), daemon=True).start()
    says = [end.recv() for end, _ in ends]
    third = Engine(folder)
    return {
        "the other's, while it goes on writing": sorted({word for one in says for word in one["meanwhile"]}),
        "the other's, afterwards": sorted({word for one in says for word in one["afterwards"]}),
        "those that both wrote, read by a third": sorted({third.load(number) for number in BOTH}),
        "temporary files left": len(list(folder.rglob("*.tmp"))),
    }


BOTH = range(300, 316)


def peer(folder: Path, seat: int, barrier: object, end: object) -> None:
    engine = Engine(folder)
    mine, others = (range(316 + 12 * one, 328 + 12 * one) for one in (seat, 1 - seat))
    barrier.wait()
    meanwhile = []
    for both, own, other in itertools.zip_longest(BOTH, mine, list(others)[:4]):
        engine.store([number for number in (both, own) if number is not None])
        meanwhile += [engine.load(other)] if other is not None else []
    barrier.wait()
    end.send({"meanwhile": meanwhile, "afterwards": [engine.load(number) for number in list(others)[4:]]})
    barrier.wait()
    os._exit(0)


def full(small: Path) -> dict[str, object]:
    engine = Engine(small)
    numbers = list(range(100, 160))
    for number in numbers:
        engine.store([number])
    written = [number for number in numbers if list(small.rglob(name_of(number)))]
    after = Engine(small)
    read = sorted({after.load(number) for number in written})
    left = len(list(small.rglob("*.tmp")))
    for number in written[-2:]:
        file_of(small, number).unlink()
    # Enough of them that host RAM no longer has the first chunks: the engine that met the full disk reads its files.
    for number in range(200, 260):
        engine.store([number])
    refused = [number for number in numbers[:50] if number not in written]
    return {
        "refused": len(numbers) - len(written),
        "read back": read,
        "temporary files left": left,
        "after two are removed, written": sum(bool(list(small.rglob(name_of(n)))) for n in range(200, 260)),
        "read by the engine that went on": sorted({engine.load(number) for number in written[:8]}),
        "refused ones, asked of it": sorted({engine.load(number) for number in refused}),
    }


def main() -> None:
    logging.disable(logging.CRITICAL)
    folder = Path(sys.argv[1])
    two = shared(folder / "shared")  # first: processes are forked before there are threads
    says: dict[str, object] = {"damage": damage(folder / "damage"), "mixtures": mixtures(folder / "mixtures")}
    says["two engines"] = two
    if len(sys.argv) > 2:
        says["disk full"] = full(Path(sys.argv[2]))
    print(json.dumps(says, indent=1), flush=True)
    os._exit(0)  # the tiers' threads have no end of their own


main()
