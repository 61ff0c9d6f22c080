"""Nodes by name, by detection, and divided among replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError, PlanRefusedError
from optistack.facts import NodeFacts, load_node
from optistack.facts.detect import cpu_count, cpu_isa, detect_node, parse_gpus, parse_nvlink_domain, ram_bytes

GIB = 1024**3
MIB = 1024**2


def test_preset_has_the_drivers_memory() -> None:
    node = load_node("b200x4")
    assert node.gpu is not None
    assert (node.gpus, node.device, node.sm) == (4, "cuda", 100)
    assert node.hbm_bytes == 183_359 * MIB
    assert node.gpu.cuda_bytes is not None
    # CUDA gives an engine 178.35 GiB of the driver's 179.06.
    assert node.hbm_bytes - node.gpu.cuda_bytes == pytest.approx(0.71 * GIB, rel=0.02)


@pytest.mark.parametrize(("kind", "sm", "mib"), [("b300", 103, 275_040), ("h200", 90, 143_771), ("h100", 90, 81_559)])
def test_other_presets(kind: str, sm: int, mib: int) -> None:
    node = load_node(f"{kind}x8")
    assert (node.sm, node.hbm_bytes, node.nvlink_domain) == (sm, mib * MIB, 8)


def test_half_a_host_has_half_its_ram() -> None:
    whole, half = load_node("b200x8"), load_node("b200x4")
    assert half.host_ram_bytes * 2 == whole.host_ram_bytes
    assert half.cpus * 2 == whole.cpus


@pytest.mark.parametrize(
    ("word", "said"),
    [("b200x9", "1 to 8"), ("b200x0", "1 to 8"), ("b20x4", "b200x4"), ("h200", "h200x"), ("", "Known"), ("x4", "x4")],
)
def test_unknown_preset(word: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_node(word)
    assert said in str(caught.value)


def test_two_replicas_of_four_split_an_eight_gpu_node() -> None:
    node = load_node("b200x8")
    first, second = node.split(2, 4)
    assert (first.gpus, second.gpus) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert first.node == second.node
    assert first.node.gpus == 4
    assert first.node.host_ram_bytes == node.host_ram_bytes // 2
    assert first.node.model_copy(update={"name": "b200x4"}) == load_node("b200x4")


def test_too_many_replicas_are_refused_with_the_numbers() -> None:
    with pytest.raises(PlanRefusedError, match="3 replicas of tensor parallel 4 need 12 GPUs, and node b200x8 has 8"):
        load_node("b200x8").split(3, 4)


def test_no_replica_is_no_layout() -> None:
    with pytest.raises(InputError, match="no layout"):
        load_node("b200x8").split(0, 4)


def test_cpu_replicas_share_cpus() -> None:
    node = NodeFacts(name="cpu", device="cpu", gpus=0, host_ram_bytes=24 * GIB, cpus=4)
    shares = node.split(2, 1)
    assert [share.gpus for share in shares] == [(), ()]
    assert (shares[0].node.cpus, shares[0].node.host_ram_bytes) == (2, 12 * GIB)
    with pytest.raises(PlanRefusedError, match="at least 5 CPUs"):
        node.split(5, 1)


@given(count=st.integers(1, 8), replicas=st.integers(1, 8), tensor_parallel=st.integers(1, 8))
def test_split_gives_no_gpu_twice_and_no_ram_that_is_not_there(count: int, replicas: int, tensor_parallel: int) -> None:
    node = load_node(f"h200x{count}")
    if replicas * tensor_parallel > count:
        with pytest.raises(PlanRefusedError):
            node.split(replicas, tensor_parallel)
        return
    shares = node.split(replicas, tensor_parallel)
    indices = [index for share in shares for index in share.gpus]
    assert indices == list(range(replicas * tensor_parallel))
    assert sum(share.node.host_ram_bytes for share in shares) <= node.host_ram_bytes


LISTING = """\
0, NVIDIA B200, 183359, 10.0
1, NVIDIA B200, 183359, 10.0
"""


def test_gpus_from_the_driver() -> None:
    gpus = parse_gpus(LISTING)
    assert [gpu.kind for gpu in gpus] == ["b200", "b200"]
    assert gpus[0] == load_node("b200x1").gpu


def test_a_gpu_without_a_preset_is_taken_as_it_is() -> None:
    (gpu,) = parse_gpus("0, NVIDIA L40S, 46068, 8.9\n")
    assert (gpu.kind, gpu.sm, gpu.hbm_bytes, gpu.hbm_bandwidth_bytes_s) == ("l40s", 89, 46068 * MIB, None)


def test_a_gpu_without_memory_is_refused() -> None:
    with pytest.raises(InputError, match="without its memory"):
        parse_gpus("0, NVIDIA GB10, [N/A], 12.1\n")


TOPOLOGY = """\
\x1b[4m\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tPIX\t0-55
GPU1\tNV18\t X \tNV18\tPIX\t0-55
"""


def test_nvlink_domain() -> None:
    assert parse_nvlink_domain(TOPOLOGY) == 3
    assert parse_nvlink_domain("GPU0\t X \tPHB\n") == 1
    assert parse_nvlink_domain("") == 1


def fake_smi(folder: Path, listing: str, status: int = 0) -> None:
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = topo ]; then printf "GPU0\\t X \\tNV18\\n"; exit {status}; fi\n'
        f"cat <<'END'\n{listing}END\nexit {status}\n"
    )
    program.chmod(0o755)


def test_detection_asks_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, LISTING)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    node = detect_node()
    assert (node.name, node.gpus, node.nvlink_domain) == ("b200x2", 2, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert detect_node().name == "b200x1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect_node().device == "cpu"


def test_detection_refuses_mixed_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, "0, NVIDIA B200, 183359, 10.0\n1, NVIDIA L40S, 46068, 8.9\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(InputError, match="several kinds"):
        detect_node()


def test_a_machine_without_a_driver_is_a_cpu_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect_node().device == "cpu"
    fake_smi(tmp_path, "", status=9)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert detect_node().device == "cpu"
    assert load_node("cpu").device == "cpu"


def make_root(folder: Path, group: str, limits: dict[str, str]) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text("MemTotal:       67108864 kB\nMemFree: 1 kB\n")
    (folder / "proc/self/cgroup").write_text(f"0::{group}\n")
    for name, value in limits.items():
        file = folder / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value)
    return folder


def test_ram_is_the_lowest_limit_above_the_process(tmp_path: Path) -> None:
    limits = {"memory.max": "max", "pod/memory.max": str(8 * GIB), "pod/box/memory.max": str(16 * GIB)}
    assert ram_bytes(make_root(tmp_path, "/pod/box", limits)) == 8 * GIB


def test_ram_without_limits_is_the_machines(tmp_path: Path) -> None:
    assert ram_bytes(make_root(tmp_path, "/", {})) == 64 * GIB


def test_cpu_quota_is_rounded_up(tmp_path: Path) -> None:
    assert cpu_count(make_root(tmp_path, "/box", {"box/cpu.max": "50000 100000"})) == 1


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ("flags\t\t: fpu avx avx2 bmi2", "avx2"),
        ("flags\t\t: avx2 avx512f avx512bw avx512dq avx512vl", "avx512"),
        ("flags\t\t: avx2 avx512f avx512bw avx512dq avx512vl amx_tile amx_bf16", "amx"),
        ("flags\t\t: avx2 avx512f", "avx2"),
        ("Features\t: fp asimd", "other"),
        ("", "other"),
    ],
)
def test_the_widest_instructions_of_the_cpus(tmp_path: Path, flags: str, isa: str) -> None:
    root = make_root(tmp_path, "/", {})
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\n{flags}\nbogomips\t: 1\n")
    assert cpu_isa(root) == isa
