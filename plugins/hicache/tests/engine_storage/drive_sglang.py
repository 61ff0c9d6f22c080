"""SGLang's own file backend, and its own prefetch thread on top, with CPU tensors: what they make of damaged files.

Run by an engine's Python: ``python drive_sglang.py FOLDER [SMALL_FOLDER]``. Prints one JSON object. ``FOLDER`` is
empty; ``SMALL_FOLDER`` lies on a file system with less room than a few pages.
"""

from __future__ import annotations

import collections
import json
import multiprocessing
import os
import queue
import random
import sys
import threading
import time
import types
from pathlib import Path

import torch
from sglang.srt.mem_cache import hicache_storage as storage

PAGE = (2, 16, 4, 8)
"""K and V, tokens, heads, values."""


def backend(folder: Path, **fields: object) -> storage.HiCacheFile:
    known = storage.HiCacheStorageConfig.__dataclass_fields__
    given = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
        "is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": True, "model_name": "org/model",
        "extra_config": None, **fields,
    }  # fmt: skip
    os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(folder)
    return storage.HiCacheFile(storage.HiCacheStorageConfig(**{k: v for k, v in given.items() if k in known}))


def page(seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(PAGE).to(dtype).flatten()


def key(number: int) -> str:
    return f"{number:064x}"


def outcome(store: storage.HiCacheFile, number: int, written: torch.Tensor) -> str:
    """``kv`` the page that was written; ``miss``; ``wrong kv`` another one, served as if it were that; or the error."""
    target = torch.zeros_like(written)
    try:
        got = store.get(key(number), target)
    except Exception as error:
        return f"{type(error).__name__}: {error}".split(":")[0] + " raised"
    if got is None:
        return "miss"
    same = torch.equal(got.view(torch.uint8), written.view(torch.uint8))
    return "kv" if same else "wrong kv"


def damage(folder: Path, store: storage.HiCacheFile) -> dict[str, str]:
    def fresh(number: int) -> tuple[Path, torch.Tensor]:
        written = page(number)
        assert store.set(key(number), written)
        (file,) = folder.glob(f"{key(number)}*.bin")
        return file, written

    says = {}
    file, written = fresh(1)
    says["whole"] = outcome(store, 1, written)
    says["after a restart"] = outcome(backend(folder), 1, written)
    says["name"] = file.name
    file.unlink()
    says["removed"] = outcome(store, 1, written)
    file, written = fresh(2)
    os.truncate(file, file.stat().st_size // 2)
    says["half"] = outcome(store, 2, written)
    says["half, seen as"] = "hit" if store.exists(key(2)) else "miss"
    says["half, written again"] = (
        "kept as it is" if store.set(key(2), written) and file.stat().st_size < 2048 else "mended"
    )
    file, written = fresh(3)
    os.truncate(file, 0)
    says["empty"] = outcome(store, 3, written)
    file, written = fresh(4)
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    says["one bit flipped"] = outcome(store, 4, written)
    file, written = fresh(5)
    file.write_bytes(file.read_bytes() + b"more")
    says["four bytes too long"] = outcome(store, 5, written)
    return says


def mixtures(folder: Path) -> dict[str, str]:
    """One folder, settings that differ: does the second engine find what the first wrote, and what does it get?"""

    def second(number: int, first: torch.Tensor, own: torch.Tensor, **fields: object) -> str:
        assert backend(folder).set(key(number), first)
        return outcome(backend(folder, **fields), number, own)

    layers_first = page(10).view(PAGE)
    pages_first = layers_first.transpose(0, 1).contiguous()
    return {
        "BF16 written, FP8 reads": second(11, page(11), page(11, torch.float8_e4m3fn)),
        "FP8 written, BF16 reads": second(12, page(12, torch.float8_e4m3fn), page(12)),
        "FP8 E4M3 written, E5M2 reads": second(13, page(13, torch.float8_e4m3fn), page(13, torch.float8_e5m2)),
        "layer_first written, page_first reads": second(14, layers_first.flatten(), pages_first.flatten()),
        "another checkpoint of the same name": second(15, page(15), page(16)),
        "another model name": second(17, page(17), page(17), model_name="org/other"),
        "TP2 reads what TP1 wrote": second(18, page(18), page(18), tp_size=2),
        "TP2 of MLA reads what TP1 of MLA wrote": mla(folder),
    }


def mla(folder: Path) -> str:
    assert backend(folder, is_mla_model=True).set(key(19), page(19))
    return outcome(backend(folder, is_mla_model=True, tp_size=2, tp_rank=1), 19, page(19))


def prefetch(folder: Path, store: storage.HiCacheFile) -> dict[str, object]:
    """The controller's prefetch thread reads a damaged page, and then a good one: is it still there for that?"""
    try:
        from sglang.srt.managers.cache_controller import HiCacheController as Controller
    except Exception as error:  # what it imports besides may not fit this environment
        return {"thread": f"not run: {error}"}

    damaged, good = page(20), page(21)
    store.set(key(20), damaged)
    store.set(key(21), good)
    (file,) = folder.glob(f"{key(20)}*.bin")
    os.truncate(file, file.stat().st_size // 2)

    pool = types.SimpleNamespace(
        page_size=1, get_dummy_flat_data_page=lambda: torch.zeros_like(good), set_from_flat_data_page=lambda *_: None
    )
    fake = types.SimpleNamespace(
        storage_stop_event=threading.Event(), prefetch_buffer=queue.Queue(), prefetch_sync_queue=queue.Queue(),
        storage_host_pool=pool, mem_pool_host=pool, storage_backend=store, page_size=1, has_draft=False,
        append_host_mem_release=lambda *_: None, draft_page_get_func=None, tp_world_size=1,
    )  # fmt: skip
    for name in ("_page_transfer", "_page_transfer_kv_batch", "_generic_page_get", "_draft_page_get"):
        if hasattr(Controller, name):
            setattr(fake, name, types.MethodType(getattr(Controller, name), fake))
    fake.page_get_func = fake._generic_page_get

    def operation(number: int) -> types.SimpleNamespace:
        one = types.SimpleNamespace(
            request_id=str(number), hash_value=[key(number)], host_indices=torch.zeros(1, dtype=torch.int64),
            prefix_keys=None, pool_transfers=None, completed_tokens=0, done=0, is_terminated=lambda: False,
        )  # fmt: skip
        one.increment = lambda tokens: setattr(one, "completed_tokens", one.completed_tokens + tokens) or True
        return one

    raised: list[str] = []
    threading.excepthook = lambda args: raised.append(args.exc_type.__name__)
    thread = threading.Thread(target=lambda: Controller.prefetch_io_aux_func(fake), daemon=True)
    thread.start()
    bad, fine = operation(20), operation(21)
    fake.prefetch_buffer.put(bad)
    fake.prefetch_buffer.put(fine)
    thread.join(5)
    alive = thread.is_alive()
    fake.storage_stop_event.set()
    thread.join(5)
    acks = [fake.prefetch_sync_queue.get_nowait() for _ in range(fake.prefetch_sync_queue.qsize())]
    tokens = {op.request_id: op.completed_tokens for op in (bad, fine)}
    for ack in acks:
        number = getattr(ack, "rid", None)
        tokens[number] = max(tokens.get(number, 0), getattr(ack, "completed_tokens", 0) or 0)
    return {
        "thread": "goes on" if alive else f"ends with {' '.join(raised)}",
        "damaged": tokens["20"],
        "next": tokens["21"],
    }


def shared(folder: Path) -> dict[str, object]:
    """Two engines write and read the same pages in one folder at once, and somebody removes files the while."""
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(2)]
    peers = [context.Process(target=peer, args=(folder, seed, end[1])) for seed, end in enumerate(ends)]
    for one in peers:
        one.start()
    removed, dice = 0, random.Random(2)
    while any(one.is_alive() for one in peers):
        for file in dice.sample(files := list(folder.glob("*.bin")), len(files) // 4):
            file.unlink(missing_ok=True)
            removed += 1
        time.sleep(0.01)
    counts = sum((end.recv() for end, _ in ends), collections.Counter())
    last = [number for number in SHARED if backend(folder).exists(key(number))]
    return {
        "writes by two": counts.pop("written"),
        "outcomes": sorted(counts),
        "files removed the while": "some" if removed else "none",
        "left in the end, read by a third": sorted({outcome(backend(folder), n, page(n).repeat(64)) for n in last}),
        "temporary files left": len([file for file in folder.iterdir() if file.suffix != ".bin"]),
    }


SHARED = range(40, 52)


def peer(folder: Path, seed: int, end: object) -> None:
    store, dice, counts = backend(folder), random.Random(seed), collections.Counter()
    pages = {number: page(number).repeat(64) for number in SHARED}
    for _ in range(2000):
        number = dice.choice(SHARED)
        if dice.random() < 0.5:
            counts["written" if store.set(key(number), pages[number]) else "refused"] += 1
        else:
            counts[outcome(store, number, pages[number])] += 1
    end.send(counts)


def full(small: Path) -> dict[str, object]:
    """Pages are written until the disk is full, and everything that was said to be written is read."""
    store = backend(small)
    written = [number for number in range(30, 400) if store.set(key(number), page(number).repeat(64))]
    read = [outcome(store, number, page(number).repeat(64)) for number in written]
    left = [file for file in small.iterdir() if ".tmp" in file.name]
    next(small.glob("*.bin")).unlink()
    return {
        "refused": 370 - len(written),
        "read back": sorted(set(read)),
        "temporary files left": len(left),
        "after one is removed": "written" if store.set(key(999), page(999).repeat(64)) else "refused",
    }


def main() -> None:
    folder = Path(sys.argv[1])
    store = backend(folder)
    two = shared(folder / "shared")  # first: a process is forked before there are threads
    says: dict[str, object] = {"damage": damage(folder, store), "mixtures": mixtures(folder), "two engines": two}
    says["prefetch"] = prefetch(folder, store)
    if len(sys.argv) > 2:
        says["disk full"] = full(Path(sys.argv[2]))
    print(json.dumps(says, indent=1))


main()
