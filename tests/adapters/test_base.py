"""Every flag of a launch has one owner, and says who."""

import pytest

from optistack.errors import PlanRefusedError
from optistack.settings import EngineArgument, choose, constrain, merge, suggest
from optistack_adapters.base import LaunchBuilder, credit


def builder() -> LaunchBuilder:
    return LaunchBuilder("sglang", aliases={"--tp": "--tp-size"})


def words(build: LaunchBuilder) -> list[str]:
    return [word for part in build.arguments for word in (part.flag, part.value) if word is not None]


def test_a_setting_is_signed_by_the_plugin_that_wished_for_it() -> None:
    value = merge(
        "kv.dtype",
        [
            suggest("bfloat16", why="as the model").from_source("sglang"),
            choose("fp8_e4m3", why="half the bytes", reference="doc").from_source("kv-fp8"),
            constrain(one_of=("bfloat16", "fp8_e4m3"), why="MLA kernel").from_source("dflash"),
        ],
    )
    assert credit(value) == {"source": "kv-fp8", "why": "half the bytes", "reference": "doc"}


def test_a_default_that_happens_to_agree_gets_no_credit() -> None:
    said = [
        suggest("fp8_e4m3", why="the checkpoint says so").from_source("plan", fallback=True),
        choose("fp8_e4m3", why="half the bytes").from_source("kv-fp8"),
    ]
    assert credit(merge("kv.dtype", said))["source"] == "kv-fp8"


def test_an_unset_setting_gives_no_flag() -> None:
    build = builder()
    build.carry("--page-size", "kv.page_size_tokens", constrain(multiple_of=16))
    assert build.arguments == ()


def test_a_plugin_may_not_override_a_flag_of_the_plan() -> None:
    build = builder()
    build.flag("--page-size", 64, source="sglang")
    with pytest.raises(PlanRefusedError, match=r"sglang sets '64', mine sets '128'"):
        build.plugin_arguments(
            [EngineArgument(backend="sglang", name="--page-size", value="128", why="x", source="mine")], "0.5.23"
        )


def test_agreeing_sources_are_both_named() -> None:
    build = builder()
    build.flag("--trust-remote-code", source="stack")
    build.flag("--trust-remote-code", source="mine")
    assert [part.source for part in build.arguments] == ["stack; mine"]


def test_arguments_of_other_backends_and_versions_stay_out() -> None:
    build = builder()
    build.plugin_arguments(
        [
            EngineArgument(backend="vllm", name="--a", why="x"),
            EngineArgument(backend="sglang", name="--b", versions="<0.5.20", why="x"),
            EngineArgument(backend="sglang", name="--c", versions=">=0.5.20", why="x"),
            EngineArgument(backend="sglang", name="HOW", value="1", env=True, why="x"),
        ],
        "0.5.23",
    )
    assert words(build) == ["--c"]
    assert [(part.name, part.value) for part in build.variables] == [("HOW", "1")]


@pytest.mark.parametrize("given", [("--tp", "8"), ("--tp-size=8",), ("--tp-size", "4")])
def test_the_user_may_not_repeat_a_flag_of_the_plan_under_any_name(given: tuple[str, ...]) -> None:
    build = builder()
    build.flag("--tp-size", 4, source="parallel section")
    with pytest.raises(PlanRefusedError, match=r"by hand.* parallel section.* \('4'\)"):
        build.user_arguments(given)


@pytest.mark.parametrize(
    ("owned", "given", "sentence"),
    [
        (
            "--trust-remote-code",
            "--trust-remote-code",
            "--trust-remote-code is given by hand and set by the stack (on).",
        ),
        ("--tp-size", "--tp", "--tp is given by hand, and the stack sets --tp-size (on)."),
        ("--cache", "--no-cache", "--no-cache is given by hand against --cache, which the stack sets (on)."),
    ],
)
def test_a_flag_by_hand_is_told_from_its_repetition_and_its_contrary(owned: str, given: str, sentence: str) -> None:
    build = LaunchBuilder("vllm", aliases={"--tp": "--tp-size", "--no-cache": "--cache"})
    build.flag(owned, source="stack")
    with pytest.raises(PlanRefusedError) as refused:
        build.user_arguments([given])
    assert refused.value.message == sentence


@pytest.mark.parametrize("given", [["garbage"], [""], ["--"], ["--seed", "3", "--"]])
def test_a_word_of_no_flag_is_refused_and_no_value_of_the_flag_before(given: list[str]) -> None:
    build = builder()
    build.flag("--port", 8000, source="plan")
    with pytest.raises(PlanRefusedError) as refused:
        build.user_arguments(given)
    assert refused.value.message == f"{given[-1]!r} is no flag."


def test_user_arguments_reach_the_engine_word_by_word() -> None:
    given = ["--a", "1", "--flag", "--b=2", "--many", "1", "2", "3", "--low", "-1"]
    build = builder()
    build.user_arguments(given)
    assert words(build) == ["--a", "1", "--flag", "--b", "2", "--many", "1", "2", "3", "--low", "-1"]
