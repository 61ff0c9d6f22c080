"""The command line of the reference deployment, and that SGLang's own parsers know every flag we may render."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from optistack.launch import Launch
from optistack.settings import CacheTier, Speculation, choose

PARSER: dict[str, Any] = json.loads((Path(__file__).parent / "parser.json").read_text())
"""Flags of ``ServerArgs.add_cli_args``, run for 0.5.17 to 0.5.23; choices are those that all of them have."""

VERSIONS = [f"0.5.{patch}" for patch in range(17, 24)]

GOLDEN = (Path(__file__).parent / "kimi-k2.6-b200x4.txt").read_text().split()


def problems(launch: Launch, version: str) -> list[str]:
    """What the parser of ``version`` would not take."""
    found = []
    for part in launch.arguments:
        known = PARSER.get(part.flag)
        if known is None or not Version(known["since"]) <= Version(version) <= Version(known["until"]):
            found.append(f"{part.flag} is not in {version}")
        elif known["value"] is (part.value is None):
            found.append(f"{part.flag} {'needs' if known['value'] else 'takes no'} value")
        elif "choices" in known and part.value not in known["choices"]:
            found.append(f"{part.flag} {part.value}")
    return found


def test_the_reference_deployment(full: Any) -> None:
    assert full.words == GOLDEN
    assert full.launch.env(port=1, folder="f") == {
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": "/mnt/nvme/kv/9f2c",
    }
    assert full.launch.command == ("-m", "sglang.launch_server")
    assert full.launch.ready_path == "/health"


def test_every_part_says_who_set_it_and_why(full: Any) -> None:
    for part in (*full.launch.arguments, *full.launch.variables):
        assert part.source, part
    silent = [part.flag for part in full.launch.arguments if not part.why and part.source != "mine"]
    assert silent == []


def test_a_flag_names_the_setting_that_it_carries(full: Any) -> None:
    paths = {path for path, value in full.request.stack.values() if value.is_set}
    carried = {part.setting for part in (*full.launch.arguments, *full.launch.variables) if part.setting}
    assert carried <= paths
    assert paths - carried == {
        "quantization.checkpoint_format",
        "quantization.experts",
        "serving.prefix_caching",
        "tiers.3.key",
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_knows_the_flags_of_the_reference_deployment(
    build: Any, stack_parts: Any, kimi_sections: Any, version: str
) -> None:
    planned = build(*stack_parts, version=version, **kimi_sections)
    assert problems(planned.launch, version) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", ["eagle", "eagle3", "nextn", "ngram", "standalone", "dspark"])
def test_every_version_knows_the_flags_of_other_methods(build: Any, llama: Any, version: str, method: str) -> None:
    speculation = Speculation(
        method=choose(method),
        draft_checkpoint=choose("some/draft") if method != "ngram" else choose(None),
        num_draft_tokens=choose(3),
        draft_window_tokens=choose(2048),
    )
    tier = CacheTier(level=2, capacity_bytes=choose(8 * 10**9), write_policy=choose("write_back"))
    planned = build(
        speculation,
        tier,
        facts=llama,
        node="h200x8",
        version=version,
        parallel={"tensor": 8, "expert": 8, "attention_data": 4},
        serving={"schedule_policy": "lpm", "cuda_graphs": False},
    )
    assert problems(planned.launch, version) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_knows_the_flags_of_a_cpu_launch(build: Any, llama: Any, cpu: Any, version: str) -> None:
    planned = build(facts=llama, node=cpu, version=version, serving={"kv_memory_gib": 1, "prefix_caching": False})
    assert problems(planned.launch, version) == []


@pytest.mark.parametrize("node", ["b200x8", "b300x8", "h200x8", "h100x8"])
@pytest.mark.parametrize("model", ["kimi", "llama"])
def test_every_preset_gets_words_that_the_parser_knows(
    build: Any, request: pytest.FixtureRequest, node: str, model: str
) -> None:
    planned = build(facts=request.getfixturevalue(model), node=node, parallel={"tensor": 8})
    assert problems(planned.launch, "0.5.23") == []
