"""How fast SGLang's prefetch thread reads pages of its file backend, while the scheduler's thread sleeps, spins as it
does between batches, or spins and lets go each time. Run by an engine's Python: ``python page_times.py EMPTY_FOLDER``.

The storage code is the engine's own; the scheduler's loop is stood in for by Python that never waits, and page-locked
staging pages by plain ones. One JSON object on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import types
from pathlib import Path
from statistics import median

import torch
from sglang.srt.managers.cache_controller import HiCacheController as Controller
from sglang.srt.mem_cache import hicache_storage as storage

TOKEN_BYTES = 23_040
"""Of the slice with Kimi's proportions, BF16 KV."""
TOKENS = 16_384
REPEATS = 7


def backend(folder: Path) -> storage.HiCacheFile:
    given = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
        "is_mla_model": True, "enable_storage_metrics": False, "is_page_first_layout": True, "model_name": "slice",
        "extra_config": None,
    }  # fmt: skip
    os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(folder)
    known = storage.HiCacheStorageConfig.__dataclass_fields__
    return storage.HiCacheFile(storage.HiCacheStorageConfig(**{k: v for k, v in given.items() if k in known}))


def controller(store: storage.HiCacheFile, page_tokens: int) -> types.SimpleNamespace:
    """As much of the engine's controller as reads pages, over a host pool that lies page after page."""
    values = page_tokens * TOKEN_BYTES // 2
    pool_buffer = torch.zeros((TOKENS // page_tokens, values), dtype=torch.bfloat16)

    def keep(index: torch.Tensor, page: torch.Tensor) -> None:
        pool_buffer[int(index) // page_tokens] = page

    pool = types.SimpleNamespace(
        page_size=page_tokens,
        get_dummy_flat_data_page=lambda: torch.zeros(values, dtype=torch.bfloat16),
        set_from_flat_data_page=keep,
    )
    fake = types.SimpleNamespace(
        storage_host_pool=pool, mem_pool_host=pool, storage_backend=store, page_size=page_tokens, has_draft=False,
        draft_page_get_func=None, prefetch_sync_queue=types.SimpleNamespace(put=lambda _: None),
    )  # fmt: skip
    for name in ("_page_transfer", "_page_transfer_kv_batch", "_generic_page_get"):
        if hasattr(Controller, name):
            setattr(fake, name, types.MethodType(getattr(Controller, name), fake))
    fake.page_get_func = fake._generic_page_get
    return fake


def read_s(fake: types.SimpleNamespace, keys: list[str], main: str) -> float:
    """Seconds until the thread has read all ``keys``, while this one does as ``main`` says."""
    lock, done = threading.Lock(), threading.Event()
    one = types.SimpleNamespace(
        request_id="1", hash_value=keys, host_indices=torch.arange(len(keys) * fake.page_size), prefix_keys=None,
        pool_transfers=None, completed_tokens=0, is_terminated=lambda: False, mark_terminate=lambda: None,
    )  # fmt: skip

    def increment(tokens: int) -> bool:
        with lock:
            one.completed_tokens += tokens
        return True

    one.increment = increment
    took: list[float] = []

    def work() -> None:
        start = time.perf_counter()
        fake._page_transfer(one)
        took.append(time.perf_counter() - start)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    if main == "sleeps":
        done.wait()
    while not done.is_set():
        if main == "lets go":
            time.sleep(0)
    thread.join()
    return took[0]


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    says = {}
    for page_tokens in (64, 256):
        place = folder / str(page_tokens)
        place.mkdir()
        store = backend(place)
        keys = [f"{number:064x}" for number in range(TOKENS // page_tokens)]
        page = torch.ones(page_tokens * TOKEN_BYTES // 2, dtype=torch.bfloat16)
        for key in keys:
            assert store.set(key, page)
        fake = controller(store, page_tokens)
        read_s(fake, keys, "sleeps")
        for how in ("sleeps", "spins", "lets go"):
            each = median(read_s(fake, keys, how) for _ in range(REPEATS)) / len(keys)
            says[f"page of {page_tokens} tokens, the scheduler {how}"] = {
                "ms_a_page": round(1000 * each, 2),
                "tokens_a_second": round(page_tokens / each),
                "mb_a_second": round(page_tokens * TOKEN_BYTES / each / 1e6),
            }
    print(json.dumps(says, indent=1))


main()
