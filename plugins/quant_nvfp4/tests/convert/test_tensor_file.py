"""Files of tensors as they are laid out and read back."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from optistack_quant_nvfp4.convert.tensor_file import Outline, lay_out, places_in

outlines = st.lists(
    st.tuples(st.sampled_from([("U8", 1), ("BF16", 2), ("F32", 4)]), st.integers(0, 40)), min_size=1, max_size=12
)


@given(outlines)
def test_tensors_are_laid_out_without_gaps_and_aligned(chosen: list[tuple[tuple[str, int], int]]) -> None:
    tensors = [Outline(f"t{i}", dtype, (n,), n * width) for i, ((dtype, width), n) in enumerate(chosen)]
    header, offsets, size = lay_out(tensors, {"format": "pt"})
    position = len(header)
    assert position % 8 == 0
    for one in sorted(tensors, key=lambda one: (offsets[one.name], one.bytes)):
        assert offsets[one.name] == position
        position += one.bytes
    assert position == size
    assert all(offsets[one.name] % {"U8": 1, "BF16": 2, "F32": 4}[one.dtype] == 0 for one in tensors)


def test_a_written_header_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    header, offsets, _ = lay_out([Outline("a", "U8", (3,), 3), Outline("b", "F32", (), 4)], {"format": "pt"})
    file.write_bytes(header + b"1234567")
    found = places_in(file)
    assert {name: place.offset for name, place in found.items()} == offsets
    assert found["a"].shape == (3,)
