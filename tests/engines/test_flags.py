"""A launch's flags are checked as the engine's parser would, and abbreviations do not pass."""

from __future__ import annotations

import argparse
import contextlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optistack.engines.flags import check_flags
from optistack.engines.probe import EngineProbe, FlagInfo


def flag(low: int, high: int | None, *aliases: str, choices: tuple[str, ...] | None = None) -> FlagInfo:
    return FlagInfo(choices=choices, default=None, min_values=low, max_values=high, aliases=aliases)


FLAGS = {
    "--kv-cache-dtype": flag(1, 1, choices=("auto", "fp8")),
    "--kv-cache-dtype-skip-layers": flag(1, None),
    "--enforce-eager": flag(0, 0, "--no-enforce-eager"),
    "--tensor-parallel-size": flag(1, 1, "-tp"),
    "--seed": flag(1, 1),
    "--lora-modules": flag(0, None),
    "--hybrid": flag(0, 1),
    "--pair": flag(2, 2),
    "--speculative-config": flag(1, 1, "-sc"),
    "--optimization-level": flag(1, 1, "-O"),
}


def probe(backend: str = "sglang", flags: dict[str, FlagInfo] = FLAGS) -> EngineProbe:
    return EngineProbe(
        backend=backend,
        version="0.33.0",
        distribution=backend,
        python_version="3.11.7",
        torch_version="2.13.0",
        device="cuda",
        packages={},
        flags=flags,
    )


def told(*arguments: str, backend: str = "vllm") -> list[tuple[str, str]]:
    return [(problem.message, problem.fix) for problem in check_flags(arguments, probe(backend))]


def test_a_right_launch_has_no_problems() -> None:
    right = "--kv-cache-dtype fp8 --enforce-eager -tp 4 --seed -1 --pair a b --hybrid --lora-modules --seed=3"
    assert told(*right.split()) == []


def test_a_misspelt_flag_gets_the_nearest() -> None:
    assert told("--kv-cach-dtype", "fp8") == [
        ("vllm 0.33.0 has no flag --kv-cach-dtype.", "Did you mean '--kv-cache-dtype'?")
    ]


def test_a_flag_and_its_value_in_one_word_are_taken_apart_in_the_fix() -> None:
    assert told("--kv-cache-dtype auto") == [
        (
            "'--kv-cache-dtype auto' is one word, and vllm 0.33.0 has no flag with a space.",
            "Write --engine-arg=--kv-cache-dtype=auto.",
        )
    ]
    assert told("--pair a=b")[0][1] == "Write --engine-arg=--pair=a=b."


def test_an_abbreviation_does_not_pass_though_argparse_takes_it() -> None:
    assert told("--enforce") == [("vllm 0.33.0 has no flag --enforce, only longer ones.", "Write --enforce-eager.")]
    assert told("--kv-cache", "fp8")[0][1] == "Write --kv-cache-dtype or --kv-cache-dtype-skip-layers."


def test_values_are_counted_and_compared_with_the_choices() -> None:
    assert told("--kv-cache-dtype=fp9") == [
        ("--kv-cache-dtype of vllm 0.33.0 does not take 'fp9'; it takes auto, fp8.", "")
    ]
    assert told("--kv-cache-dtype", "--seed", "1") == [("--kv-cache-dtype of vllm 0.33.0 needs a value.", "")]
    assert told("--enforce-eager", "true") == [("--enforce-eager of vllm 0.33.0 takes no value, and has 'true'.", "")]
    assert told("--seed", "1", "2") == [("--seed of vllm 0.33.0 takes 1 value, and has '1 2'.", "")]
    assert told("--pair", "a") == [("--pair of vllm 0.33.0 needs 2 values, and has 1.", "")]


def test_the_spellings_that_only_vllm_takes() -> None:
    spellings = ["--kv_cache_dtype", "fp8", "--speculative-config.method", "ngram", "-sc.model=x", "-O3", "-O=3"]
    assert told(*spellings) == []
    assert {fix for _, fix in told(*spellings, backend="sglang")} >= {"Did you mean '--kv-cache-dtype'?"}
    assert told("--kv_cache_dtype", "fp9")[0][0].endswith("does not take 'fp9'; it takes auto, fp8.")


@settings(deadline=None)
@given(st.sampled_from(sorted(FLAGS)), st.data())
def test_no_shortened_flag_passes(name: str, data: st.DataObject) -> None:
    short = name[: data.draw(st.integers(3, len(name) - 1))]
    if short in FLAGS:
        return
    assert check_flags([short, "auto"], probe())


@st.composite
def launches(draw: st.DrawFn) -> list[str]:
    """Flags, right and wrong, with values, right and wrong."""
    names = [*FLAGS, "--no-enforce-eager", "-tp", "-sc", "--unknown", "-x"]
    words = st.sampled_from(["fp8", "auto", "4", "-1", "-0.5", "x.y", "{}"])
    launch: list[str] = []
    for name in draw(st.lists(st.sampled_from(names), max_size=4)):
        if draw(st.booleans()) and name.startswith("--"):
            launch.append(f"{name}={draw(words)}")
        else:
            launch += [name, *draw(st.lists(words, max_size=3))]
    return launch


@settings(deadline=None, max_examples=500)
@given(launches())
def test_it_says_no_exactly_where_argparse_does(launch: list[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name, info in FLAGS.items():
        if info.max_values == 0:
            parser.add_argument(name, *info.aliases, action="store_true")
            continue
        counts: dict[tuple[int, int | None], str | int] = {(0, None): "*", (1, None): "+", (0, 1): "?", (2, 2): 2}
        nargs = counts.get((info.min_values, info.max_values))
        parser.add_argument(name, *info.aliases, nargs=nargs, choices=info.choices)
    accepted = True
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            parser.parse_args(launch)
        except SystemExit:
            accepted = False
    assert (check_flags(launch, probe()) == []) == accepted


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_no_arguments_no_problems(backend: str) -> None:
    assert check_flags([], probe(backend)) == []
