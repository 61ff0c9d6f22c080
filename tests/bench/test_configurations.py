"""The lists of configurations for runs that need a GPU: whole, and startable as they are."""

from __future__ import annotations

import fcntl
import json
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LISTS = sorted(path for path in (ROOT / "benchmarks" / "configurations").glob("*.yaml") if "title" in path.read_text())
KNOWN = {"name", "stack", "backend", "without", "plugins", "set", "engine_args", "env", "apply", "bench", "conformance"}
KNOWN |= {"checks", "quiet"}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_list_names_each_configuration_once_and_its_stack_is_there(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    rows = [{**document["common"], **one} for one in document["configurations"]]
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        assert set(row) <= KNOWN
        assert (path.parent / row["stack"]).is_file()


def test_a_list_is_planned_without_starting_anything(tmp_path: Path) -> None:
    """A stack whose model is at hand in the repository: its shape."""
    stack = ROOT / "stacks" / "kimi-k2.6-b200x4.yaml"
    one = {"name": "kimi", "stack": str(stack), "backend": "sglang"}
    (tmp_path / "list.yaml").write_text(yaml.safe_dump({"title": "t", "configurations": [one]}))
    words = [str(tmp_path / "list.yaml"), "--out", str(tmp_path / "out"), "--plan-only"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run_configurations.py"), *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "out" / "rows.json").read_text())["rows"]
    assert row["planned_kv_tokens"] > 0
    assert row["bandwidth_steps_s"] > 0
    assert row["asked"].items() >= one.items()


sys.path.insert(0, str(ROOT / "benchmarks"))
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "run_configurations.py"))


def plan(bandwidth_bytes_s: float | None, *, moe: dict[str, int] | None = None, replicas: int = 1) -> dict[str, Any]:
    """1,000 bytes of weights that every token uses, 8,000 of routed experts, 500 of a draft, 1 byte of KV a token."""
    weights = [{"label": "attention", "bytes": 1000}, *([{"label": "routed experts", "bytes": 8000}] if moe else [])]
    return {
        "share": {"gpu": {"hbm_bandwidth_bytes_s": bandwidth_bytes_s} if bandwidth_bytes_s else None},
        "model": {"moe": moe},
        "budget": {
            "bytes_per_kv_token": 1,
            "weights": weights,
            "charges": [{"label": "draft weights", "bytes": 500}],
        },
        "launches": [{}] * replicas,
    }


FIGURES = {
    "user_tokens_s_p50": 60.0, "in_flight": 1.0, "prompt_tokens_mean": 450.0, "output_tokens_mean": 100.0,
    "acceptance_length": 2.0,
}  # fmt: skip


def test_predicted_speed_is_steps_times_the_acceptance_length() -> None:
    found = SCRIPT["speed"](plan(100_000.0), [FIGURES, FIGURES])
    assert found["predicted_user_tokens_s"] == pytest.approx(100_000 / (1000 + 500 + 450 + 50) * 2)
    assert found["measured_over_predicted"] == pytest.approx(60 / 100)
    without = {key: value for key, value in FIGURES.items() if key != "acceptance_length"}
    assert SCRIPT["speed"](plan(100_000.0), [without])["predicted_user_tokens_s"] == pytest.approx(50)
    row = {"name": "n", "planned_kv_tokens": 5, "bandwidth_steps_s": 50.0, **found}
    assert SCRIPT["describe"](row).endswith("measured 60.0 tokens/s/user, 60% of the 100.0 predicted")


def test_requests_in_flight_share_the_weights_and_have_kv_and_experts_of_their_own() -> None:
    two_replicas = SCRIPT["speed"](plan(100_000.0, replicas=2), [{**FIGURES, "in_flight": 8.0}])
    assert two_replicas["requests_a_replica"] == 4
    assert two_replicas["predicted_user_tokens_s"] == pytest.approx(100_000 / (1500 + 4 * 500) * 2)
    routed = plan(100_000.0, moe={"experts_per_token": 2, "routed_experts": 8})
    assert SCRIPT["bandwidth_steps_s"](routed, 0, 2) == pytest.approx(100_000 / (1500 + 8000 * (1 - 0.75**2)))


def test_without_a_bandwidth_or_a_measurement_there_is_no_ratio() -> None:
    assert SCRIPT["speed"](plan(None), [FIGURES]) == {"measured_user_tokens_s": 60.0}
    assert SCRIPT["speed"](plan(1.0), []) == SCRIPT["speed"](plan(1.0), [{"errors": 8.0}]) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"failed": "apply"},
        {"ended": "SIGTERM"},
        {"apply_exit_code": 1},
        {"bench_exit_code": 1},
        {"checks": {"speed": 1}},
        {"checks": {"speed": "TimeoutExpired"}},
        {"reported_kv_tokens": None},
        {"reported_kv_tokens": 97},
    ],
)
def test_whatever_failed_fails_the_run(change: dict[str, Any]) -> None:
    good = {"planned_kv_tokens": 100, "reported_kv_tokens": 100, "apply_exit_code": 0, "checks": {"conformance": 4}}
    assert not SCRIPT["missed"](good)
    assert SCRIPT["missed"](good | change)


def test_a_check_that_cannot_be_started_stops_no_other(tmp_path: Path) -> None:
    places, log = {"python": sys.executable, "out": str(tmp_path)}, tmp_path / "log"
    run = SCRIPT["check"]
    assert run("{nothing}", places, tmp_path / "a", {}, log) == "KeyError"
    assert run("no-such-program", places, tmp_path / "b", {}, log) == "FileNotFoundError"
    assert run("{python} -c 'print(1)'", places, tmp_path / "c", {}, log) == 0
    assert (tmp_path / "c").read_text() == "1\n"


def test_a_lock_is_taken_once_and_its_folder_is_asked_for_first(tmp_path: Path) -> None:
    runner = ROOT / "benchmarks" / "run_configurations.py"
    code = "import sys; from pathlib import Path; from locks import alone\n"
    code += "with alone([Path(sys.argv[1])] * 2): print('held')"
    words = [sys.executable, "-c", code, str(tmp_path / "gpu.lock")]
    done = subprocess.run(words, cwd=runner.parent, capture_output=True, text=True, timeout=30)
    assert done.stdout == "held\n"
    words = [sys.executable, str(runner), str(LISTS[0]), "--out", str(tmp_path / "out"), "--plan-only"]
    done = subprocess.run([*words, "--lock", str(tmp_path / "no" / "gpu.lock")], capture_output=True, text=True)
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)
    assert "there is no folder" in done.stderr


def test_a_list_of_two_locks_holds_none_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = runpy.run_path(str(ROOT / "benchmarks" / "locks.py"))
    first, second = tmp_path / "gpu0", tmp_path / "gpu1"
    waits, held, done = threading.Event(), threading.Event(), threading.Event()
    lock = fcntl.flock

    def told(file: Any, how: int) -> None:
        if not how & fcntl.LOCK_NB:
            waits.set()
        lock(file, how)

    def pair() -> None:
        with locks["alone"]([second, first]):
            held.set()
            done.wait(30)

    thread = threading.Thread(target=pair)
    with second.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr(fcntl, "flock", told)
        thread.start()
        assert waits.wait(30)
        with first.open("w") as free:
            lock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not held.is_set()
    assert held.wait(30)
    for file in (first, second):
        with file.open("w") as taken, pytest.raises(BlockingIOError):
            lock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
    done.set()
    thread.join(30)


CHILD = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], "w").write("kept"), sys.exit()))
print(flush=True)
signal.pause()
"""
ENDED = (
    f"CHILD = {CHILD!r}"
    + """
import sys
import run_configurations as runner
from commands import until_ended

def run_one(row, one, folder, out, *_, **__):
    row["planned_kv_tokens"] = 5
    until_ended([sys.executable, "-c", CHILD, str(out / one["name"])], sys.stdout, sys.stderr, {})

runner.run_one = run_one
sys.exit(runner.main())
"""
)


def test_what_was_measured_is_kept_and_marked_when_the_runner_is_told_to_end(tmp_path: Path) -> None:
    common = {"stack": "s", "backend": "vllm"}
    document = {"title": "t", "common": common, "configurations": [{"name": "first"}, {"name": "second"}]}
    (tmp_path / "list.yaml").write_text(yaml.safe_dump(document))
    out = tmp_path / "out"
    words = [sys.executable, "-c", ENDED, str(tmp_path / "list.yaml"), "--out", str(out)]
    with subprocess.Popen(words, cwd=ROOT / "benchmarks", stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        runner.stdout.readline()
        runner.send_signal(signal.SIGTERM)
        said = runner.stdout.read()
    assert runner.returncode == 130 and "ended by SIGTERM" in said
    (row,) = json.loads((out / "rows.json").read_text())["rows"]
    assert (row["name"], row["ended"], row["planned_kv_tokens"]) == ("first", "SIGTERM", 5)
    assert (out / "first").read_text() == "kept", "the command that was running was told, and waited for"


def test_figures_are_those_that_the_benchmark_wrote(tmp_path: Path) -> None:
    assert SCRIPT["figures"](tmp_path / "result.json") == []
    points = [{"repeats": [{"figures": {"errors": 0.0}}]}, {"repeats": []}]
    (tmp_path / "result.json").write_text(json.dumps({"state": "partial", "points": points}))
    assert SCRIPT["figures"](tmp_path / "result.json") == [{"errors": 0.0}]


def test_a_padded_tokenizer_has_every_token_of_the_model_and_what_it_had() -> None:
    pad = runpy.run_path(str(ROOT / "benchmarks" / "pad_tokenizer.py"))["padded"]
    had = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 2}, "merges": []}, "decoder": None}
    found = pad(had, 5)
    assert sorted(found["model"]["vocab"].values()) == [0, 1, 2, 3, 4]
    assert found["model"]["vocab"].items() >= had["model"]["vocab"].items() and found["decoder"] is None
    with pytest.raises(ValueError, match="no BPE"):
        pad({"model": {"type": "Unigram"}}, 5)


@pytest.mark.parametrize(
    ("first", "second", "together"), [(False, False, True), (False, True, False), (True, False, False)]
)
def test_starts_go_together_and_a_quiet_measurement_goes_alone(
    tmp_path: Path, first: bool, second: bool, together: bool
) -> None:
    held = runpy.run_path(str(ROOT / "benchmarks" / "locks.py"))["held"]
    file, entered, order = tmp_path / "starting.lock", threading.Event(), list[str]()

    def enter() -> None:
        with held(file, alone=second):
            order.append("second")
            entered.set()

    thread = threading.Thread(target=enter)
    with held(file, alone=first), file.open("w") as other:
        thread.start()
        if together:
            assert entered.wait(30)
        else:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, (fcntl.LOCK_EX if second else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        order.append("first has ended")
    thread.join(30)
    assert sorted(order) == ["first has ended", "second"] and (order[0] == "second") is together


def test_without_a_file_of_starts_nothing_is_held() -> None:
    with runpy.run_path(str(ROOT / "benchmarks" / "locks.py"))["held"](None, alone=True):
        pass
