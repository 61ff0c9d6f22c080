"""Nodes by name: ``b200x4``, ``h200x8``.

Sources. Memory by the driver is what ``nvidia-smi`` prints as memory.total (seen in public logs of SXM boards: B200
183359 MiB, B300 275040 MiB, H200 143771 MiB, H100 80GB HBM3 81559 MiB). Memory by CUDA is the total that PyTorch's
out-of-memory messages give (178.35, 267.69, 139.80 and 79.15 GiB). Sizes as sold: DGX B200 1,440 GB, DGX B300 288 GB a
GPU, DGX H200 1,128 GB and DGX H100 640 GB for eight. Bandwidth: H100 3.35 and H200 4.8 TB/s from NVIDIA's data sheets;
B200 7.67 TB/s from a 7680-bit bus at 3996 MHz, as its driver reports (pytorch/ao pull request 4002), where the data
sheet says 8; B300 8 TB/s from the data sheet. Hosts: the eight-GPU DGX of each kind has 2 TB of RAM (32 DIMMs of 64
GiB) and two CPUs of 56 cores (B300: 64), with two threads each.
"""

from __future__ import annotations

import re

from optistack.errors import InputError, nearest
from optistack.facts.node import GIB, MIB, Gpu, NodeFacts

HOST_GPUS = 8
_HOST_RAM_BYTES = 2048 * GIB

GPUS = {
    gpu.kind: gpu
    for gpu in (
        Gpu(
            kind="b200",
            name="NVIDIA B200",
            sm=100,
            hbm_bytes=183_359 * MIB,
            cuda_bytes=int(178.35 * GIB),
            sold_gb=180,
            hbm_bandwidth_bytes_s=7_672_000_000_000,
        ),
        Gpu(
            kind="b300",
            name="NVIDIA B300 SXM6 AC",
            sm=103,
            hbm_bytes=275_040 * MIB,
            cuda_bytes=int(267.69 * GIB),
            sold_gb=288,
            hbm_bandwidth_bytes_s=8_000_000_000_000,
        ),
        Gpu(
            kind="h200",
            name="NVIDIA H200",
            sm=90,
            hbm_bytes=143_771 * MIB,
            cuda_bytes=int(139.80 * GIB),
            sold_gb=141,
            hbm_bandwidth_bytes_s=4_800_000_000_000,
        ),
        Gpu(
            kind="h100",
            name="NVIDIA H100 80GB HBM3",
            sm=90,
            hbm_bytes=81_559 * MIB,
            cuda_bytes=int(79.15 * GIB),
            sold_gb=80,
            hbm_bandwidth_bytes_s=3_350_000_000_000,
        ),
    )
}
_HOST_THREADS = {"b200": 224, "b300": 256, "h200": 224, "h100": 224}
_PRESET = re.compile(r"([a-z][a-z0-9]*)x(\d+)")


def preset(word: str) -> NodeFacts:
    """The node ``<kind>x<count>``. InputError, with the nearest name, for any other word."""
    found = _PRESET.fullmatch(word)
    gpu = GPUS.get(found.group(1)) if found else None
    count = int(found.group(2)) if found else 0
    if gpu is None or not 1 <= count <= HOST_GPUS:
        if gpu is not None:
            raise InputError(
                f"Node {word!r} has {count} GPUs; a node has 1 to {HOST_GPUS}.",
                fix="Several nodes are several replicas.",
            )
        raise InputError(f"There is no node called {word!r}.", fix=nearest(word, preset_names()))
    return NodeFacts(
        name=word,
        device="cuda",
        gpus=count,
        gpu=gpu,
        nvlink_domain=count,
        host_ram_bytes=_HOST_RAM_BYTES * count // HOST_GPUS,
        cpus=_HOST_THREADS[gpu.kind] * count // HOST_GPUS,
    )


def preset_names() -> tuple[str, ...]:
    """Every name that :func:`optistack.facts.node.load_node` takes."""
    counted = (f"{kind}x{count}" for kind in GPUS for count in range(1, HOST_GPUS + 1))
    return (*counted, "cpu", "detect")
