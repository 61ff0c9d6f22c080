"""What is looked at on the machine before an engine with a file of KV scales starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optistack.errors import InputError, PlanRefusedError
from optistack_kv_fp8.start import before_start


def scales(*, ranks: int = 4, layers: int = 30) -> str:
    """As calibrate writes them; the world has four ranks, and the small model 30 layers."""
    each = {str(layer): 0.5 for layer in range(layers)}
    factors = {str(rank): each for rank in range(ranks)}
    return json.dumps({"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": factors}})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        ("# no scales", "are no JSON"),
        ("[" * 10**5, "are no JSON"),
        ("[]", "holds no KV scales"),
        ('{"kv_cache": 1}', "holds no KV scales"),
        ('{"kv_cache": {"scaling_factor": {}}}', "holds no KV scales"),
        ('{"kv_cache": {"scaling_factor": [0.5]}}', "holds no KV scales"),
        (scales(ranks=1), r"are for 1 rank\(s\), and this plan has 4"),
        (scales(layers=1), "are not those of the model's 30 layers"),
        (scales(layers=31), "are not those of the model's 30 layers"),
    ],
)
def test_a_file_without_scales_is_refused(
    world: Any, small: Any, tmp_path: Path, content: str | None, said: str
) -> None:
    file = tmp_path / "scales.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(PlanRefusedError, match=said) as refusal:
        before_start(world.of(small).asking(scales_file=str(file)).plan())
    assert "optistack kv-fp8 calibrate" in str(refusal.value.fix)


def test_what_calibrate_writes_may_start_and_so_may_a_plan_without_a_file(
    world: Any, small: Any, tmp_path: Path
) -> None:
    file = tmp_path / "scales.json"
    file.write_text(scales())
    before_start(world.of(small).asking(scales_file=str(file)).plan())
    before_start(world.of(small).plan())


def test_an_empty_name_is_no_file(world: Any) -> None:
    with pytest.raises(InputError, match="scales_file"):
        world.asking(scales_file="").resolve()
