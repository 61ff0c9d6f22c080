"""The script starts the launch as planned, word for word, on any POSIX shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.launch import RUN, FrontLaunch, Launch, LaunchArgument, LaunchFile
from optistack.plan.plan import Plan
from optistack.plan.script import quote, script
from optistack.stack import EngineSection

MakePlan = Callable[..., Plan]

REPORT = """\
#!/usr/bin/env python3
import json, os, sys
json.dump({"argv": sys.argv[1:], "env": dict(os.environ)}, open(os.environ["REPORT"], "w"))
"""


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs a script with a program in the engine's place that reports its arguments and its environment."""
    program = tmp_path / "reporter"
    program.write_text(REPORT)
    program.chmod(0o755)

    def run(text: str, *arguments: str, **environment: str) -> dict[str, Any]:
        (tmp_path / "launch.sh").write_text(text)
        stand_in = {"PYTHON": str(program), "CONTAINER": str(program), "REPORT": str(tmp_path / "report.json")}
        subprocess.run(
            ["sh", str(tmp_path / "launch.sh"), *arguments],
            check=True,
            env={**os.environ, "FOLDER": str(tmp_path / "files"), **stand_in, **environment},
        )
        report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
        return report

    return run


def test_it_runs_the_very_command_with_its_variables_and_files(
    make_plan: MakePlan, run_script: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    plan = make_plan()
    report = run_script(script(plan, engine_env={"ENGINES_OWN": "1"}), "--more", PORT="12345")
    launch, folder = plan.launches[0], str(tmp_path / "files")
    assert report["argv"] == [*launch.argv("python", port=12345, folder=folder)[1:], "--more"]
    assert report["env"]["SGLANG_X"] == "a b $HOME"
    assert report["env"]["ENGINES_OWN"] == "1"
    assert report["env"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert (tmp_path / "files" / "l3 it's.json").read_text() == launch.files[0].content


def test_with_an_image_it_runs_a_container_that_sees_gpus_and_files(
    make_plan: MakePlan, run_script: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    plan = make_plan()
    spec = plan.spec.model_copy(update={"engine": EngineSection(image="lmsysorg/sglang:v0.5.23")})
    text = script(plan.model_copy(update={"spec": spec}))
    argv = run_script(text, HF_HOME="/hf", HF_TOKEN="hf_secret")["argv"]
    image = argv.index("lmsysorg/sglang:v0.5.23")
    options, command = argv[:image], argv[image + 1 :]
    assert options[:2] == ["run", "--rm"]
    assert '"device=0,1,2,3"' in options
    assert "SGLANG_X=a b $HOME" in options
    assert "/hf:/root/.cache/huggingface" in options
    # The container takes the caller's own token; its value is in no script and no command line.
    assert options[options.index("HF_TOKEN") - 1] == "-e"
    assert "hf_secret" not in argv
    assert f"{tmp_path / 'files'}:{tmp_path / 'files'}" in options
    assert not any("CUDA_VISIBLE_DEVICES" in word for word in options)
    assert command == plan.launches[0].argv("python3", port=30000, folder=str(tmp_path / "files"))[1:]
    assert options[options.index("--entrypoint") + 1] == "python3"


def test_of_several_replicas_it_starts_the_one_that_is_asked_for(
    make_plan: MakePlan, run_script: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    plan = make_plan()
    second = plan.launches[0].model_copy(update={"replica": 1, "gpus": (4, 5, 6, 7)})
    text = script(plan.model_copy(update={"launches": (plan.launches[0], second)}))
    report = run_script(text, "1", "--more")
    assert report["env"]["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert report["argv"][report["argv"].index("--port") + 1] == "30001"
    assert report["argv"][-1] == "--more"
    with pytest.raises(subprocess.CalledProcessError):
        run_script(text, "2")


def test_every_run_of_a_script_names_its_shared_memory_anew() -> None:
    command = ["sh", "-c", f"printf '%s %s' {quote(f'a{RUN}')} {quote(f'b{RUN}')}"]
    words = [word for _ in range(2) for word in subprocess.check_output(command, text=True).split()]
    assert [word[0] for word in words] == ["a", "b"] * 2
    assert len({word[1:] for word in words}) == 4 and RUN not in "".join(words)


def test_a_refused_plan_says_so_in_its_script(make_plan: MakePlan) -> None:
    assert "REFUSED" in script(make_plan(tensor=2))


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20))
def test_any_word_reaches_the_engine_as_it_is(word: str) -> None:
    launch = Launch(
        backend="x", version="1", command=(), arguments=(LaunchArgument(flag="--a", value=word, source="plan"),)
    )
    expected = launch.argv("p", port="80", folder="/f f")[2]
    command = f"PORT=80; FOLDER='/f f'; printf '%s.' {quote(word)}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert done.stdout == f"{expected}.".encode()


def test_the_front_and_its_replicas_find_each_other(
    make_plan: MakePlan, run_script: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    plan = make_plan()
    second = plan.launches[0].model_copy(update={"replica": 1})
    values = {"--port": "{port}", "--admin": "{port.admin}", "--replica": "{replica.url}", "--file": "{folder}/a b"}
    front = FrontLaunch(
        name="router",
        command=("-c", "import json, pathlib, sys; print(json.dumps(sys.argv[1:] + [open(sys.argv[-1]).read()]))"),
        arguments=tuple(LaunchArgument(flag=flag, value=value, source="x") for flag, value in values.items()),
        files=(LaunchFile(name="a b", content="$HOME `x` \\\n{replica.url}: {replica.folder}\n", source="x"),),
        ports=("admin",),
    )
    text = script(plan.model_copy(update={"launches": (plan.launches[0], second), "front": front}))
    assert run_script(text, "1")["argv"][-1] != "1"
    assert run_script(text, "1")["argv"][run_script(text, "1")["argv"].index("--port") + 1] == "30002"
    file, base = tmp_path / "launch.sh", tmp_path / "base"
    file.write_text(text)
    env = {**os.environ, "FOLDER": str(base), "FRONT_PYTHON": sys.executable}
    done = subprocess.run(["sh", str(file), "router"], env=env, capture_output=True, text=True, check=True)
    *words, written = json.loads(done.stdout)
    urls = ["http://127.0.0.1:30001", "http://127.0.0.1:30002"]
    expected = ["--port", "30000", "--admin", "30003", "--replica", urls[0], "--replica", urls[1]]
    assert words == [*expected, "--file", f"{base}/router/a b"]
    assert written == f"$HOME `x` \\\n{urls[0]}: {base}/replica-0\n{urls[1]}: {base}/replica-1\n"
    with pytest.raises(subprocess.CalledProcessError):
        run_script(text, "2")
