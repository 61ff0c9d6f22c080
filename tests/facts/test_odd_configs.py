"""A config.json may hold anything: what is no model's is told in a sentence that names the file."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optistack.errors import InputError
from optistack.facts import load_model

STACKS = Path(__file__).resolve().parents[2] / "stacks" / "models"
CONFIGS = [json.loads(file.read_text()) for file in sorted(STACKS.glob("*/config.json"))]
GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "group"},
}
CONFIGS.append(
    {
        **CONFIGS[0],
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"all": GROUP},
            "ignore": ["lm_head"],
            "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        },
    }
)
ODD = st.sampled_from([None, "x", "", -1, 0, 1.5, 10**30, [], [3], ["x"], {}, {"a": 3}, True, float("nan")])


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*place, key)
        yield from _places(part, (*place, key))


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A real config with something else in one place."""
    config: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(CONFIGS)))
    *above, last = draw(st.sampled_from(list(_places(config))))
    part: Any = config
    for key in above:
        part = part[key]
    part[last] = draw(ODD)
    return config


@given(config=configs())
def test_anything_in_a_config_is_read_or_told(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("odd") / "config.json"
    file.write_text(json.dumps(config))
    try:
        load_model(str(file))
    except InputError as error:
        assert "\n" not in error.message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": 3}, "has a value of another kind than such files have"),
        ({"num_hidden_layers": 0}, "says 'num_hidden_layers' is 0, which no model has."),
        ({"num_hidden_layers": 10**30}, "which no model has."),
        ({"head_dim": 0}, "says 'head_dim' is 0, which no model has."),
        ({"hidden_size": 0}, "says 'hidden_size' is 0, which no model has."),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": 3}},
            "says 'config_groups' is 3, which is not an object.",
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": []}, "layer_types": 3},
            "has a value of another kind than such files have",
        ),
    ],
)
def test_what_no_model_has_is_told_with_the_file(change: dict[str, Any], says: str, tmp_path: Path, made: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**made.llama_config(), **change}))
    with pytest.raises(InputError) as caught:
        load_model(str(tmp_path))
    assert caught.value.message.startswith(str(tmp_path / "config.json")) and says in caught.value.message
    assert caught.value.fix


def test_a_name_that_is_too_long_is_told_of_a_checkpoint_and_of_its_stand_in() -> None:
    name = "ü" * 300
    with pytest.raises(InputError, match="File name too long"):
        load_model(f"./{name}")
    with pytest.raises(InputError, match="File name too long"):
        load_model("nobody/nothing", config_fallback=Path(name))
