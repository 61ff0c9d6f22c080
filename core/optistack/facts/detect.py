"""The machine that this runs on: GPUs as the driver reports them, RAM and CPUs as its control group allows."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from optistack.errors import InputError
from optistack.facts.node import MIB, Gpu, Isa, NodeFacts
from optistack.facts.presets import GPUS

_QUERY = "index,name,memory.total,compute_cap"
_TIMEOUT_S = 20
_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_ISAS: dict[Isa, set[str]] = {"amx": {"amx_tile"} | _AVX512, "avx512": _AVX512, "avx2": {"avx2"}}


def detect_node() -> NodeFacts:
    """The local node: its NVIDIA GPUs where ``nvidia-smi`` finds any, else the CPUs.

    CUDA_VISIBLE_DEVICES narrows it, as it narrows an engine. InputError when the visible GPUs differ in kind.
    """
    listing = nvidia_smi(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
    gpus = _visible(parse_gpus(listing)) if listing else []
    if not gpus:
        return detect_cpu()
    kinds = {gpu.name for gpu in gpus}
    if len(kinds) > 1:
        raise InputError(
            f"This machine has GPUs of several kinds ({', '.join(sorted(kinds))}).",
            fix="Choose those of one kind with CUDA_VISIBLE_DEVICES.",
        )
    return NodeFacts(
        name=f"{gpus[0].kind}x{len(gpus)}",
        device="cuda",
        gpus=len(gpus),
        gpu=gpus[0],
        nvlink_domain=min(len(gpus), parse_nvlink_domain(nvidia_smi("topo", "-m") or "")),
        host_ram_bytes=ram_bytes(),
        cpus=cpu_count(),
        cpu_isa=cpu_isa(),
    )


def detect_cpu() -> NodeFacts:
    """The local node as a CPU node, whatever GPUs it has."""
    return NodeFacts(name="cpu", device="cpu", gpus=0, host_ram_bytes=ram_bytes(), cpus=cpu_count(), cpu_isa=cpu_isa())


def nvidia_smi(*arguments: str) -> str | None:
    """What nvidia-smi prints, or None where it is not installed or finds no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def parse_gpus(listing: str) -> list[Gpu]:
    """GPUs from ``nvidia-smi --query-gpu=index,name,memory.total,compute_cap --format=csv,noheader,nounits``."""
    gpus = []
    for line in filter(None, map(str.strip, listing.splitlines())):
        fields = [field.strip() for field in line.split(",")]
        try:
            name, memory_mib, capability = fields[1], int(fields[2]), fields[3]
            sm = int(capability.replace(".", ""))
        except (IndexError, ValueError):
            raise InputError(
                f"nvidia-smi describes a GPU as {line!r}, without its memory or capability.",
                fix="Name the node by a preset such as h200x1.",
            ) from None
        known = next((gpu for gpu in GPUS.values() if gpu.name == name), None)
        measured = {"hbm_bytes": memory_mib * MIB, "sm": sm}
        if known is not None:
            gpus.append(known.model_copy(update=measured))
        else:
            kind = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-")
            gpus.append(Gpu(kind=kind, name=name, **measured))
    return gpus


def visible_devices(gpus: Iterable[int]) -> str:
    """CUDA_VISIBLE_DEVICES for ``gpus``, which count from 0 among those that are visible to us."""
    ours = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    return ",".join(ours[gpu] if gpu < len(ours) else str(gpu) for gpu in gpus)


def _visible(gpus: list[Gpu]) -> list[Gpu]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    words = [word.strip() for word in chosen.split(",") if word.strip()]
    if not all(word.isdigit() for word in words):
        # GPUs named by UUID: as many as are named, all of one kind or refused.
        return gpus[: len(words)] if all(word.startswith(("GPU-", "MIG-")) for word in words) else []
    return [gpus[int(word)] for word in words if int(word) < len(gpus)]


def parse_nvlink_domain(topology: str) -> int:
    """How many GPUs the first one reaches over NVLink, itself included, from ``nvidia-smi topo -m``."""
    row = re.search(r"^GPU0\s+(.*)$", re.sub(r"\x1b\[[0-9;]*m", "", topology), re.MULTILINE)
    return 1 + len(re.findall(r"\bNV\d+\b", row.group(1))) if row else 1


def ram_bytes(root: Path = Path("/")) -> int:
    """RAM that this process may use: the machine's, or the lowest limit of its control groups (v2 and v1)."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    limits = [int(total.group(1)) * 1024] if total else []
    limits += [limit for limit in map(_integer, _group_files(root, "memory.max")) if limit]
    limits += [limit for limit in map(_integer, [root / "sys/fs/cgroup/memory/memory.limit_in_bytes"]) if limit]
    return min(limits)


def cpu_count(root: Path = Path("/")) -> int:
    """Logical CPUs that this process may use: its affinity, or the quota of its control groups if that is less."""
    counts = [len(os.sched_getaffinity(0))]
    for file in _group_files(root, "cpu.max"):
        quota, _, period = _text(file).partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            counts.append(max(1, math.ceil(int(quota) / int(period))))
    return min(counts)


def cpu_isa(root: Path = Path("/")) -> Isa:
    """The widest of the x86 extensions that PyTorch tells CPU kernels of, by the flags that the kernel reports.

    AVX-512 is F, BW, DQ and VL together, as PyTorch asks for it (``torch.cpu._is_avx512_supported``).
    """
    line = re.search(r"^flags\s*:(.*)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    flags = set(line.group(1).split()) if line else set()
    return next((isa for isa, asked in _ISAS.items() if asked <= flags), "other")


def _group_files(root: Path, name: str) -> list[Path]:
    """``name`` in the control group of this process and in every group above it."""
    top = root / "sys/fs/cgroup"
    group = re.search(r"^0::/?(.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    inner = top / group.group(1) if group else top
    return [folder / name for folder in (inner, *inner.parents) if folder == top or top in folder.parents]


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _integer(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdigit() else None
