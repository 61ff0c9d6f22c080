"""Where tensors lie in safetensors files, and the header of a file that is to be written.

Layout: https://huggingface.co/docs/safetensors (section "Format"): 8 bytes of little-endian length, the header as JSON,
the data. Tensors are laid out widest type first, as the format's own writer does, so that each is aligned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from optistack.errors import InputError
from optistack.facts.safetensors import DTYPE_BITS, read_shard

_LENGTH_BYTES = 8


class Place(NamedTuple):
    """A tensor in a file: ``bytes`` bytes from ``offset``, row after row."""

    file: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class Outline(NamedTuple):
    """A tensor that is to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


def places_in(file: Path) -> dict[str, Place]:
    """The tensors of ``file`` by name, in the order of their data. InputError naming the file if it is damaged."""
    read_shard(file)  # checks sizes, types and the file's length
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        entries = json.loads(stream.read(length))
    start = _LENGTH_BYTES + length
    found = {
        name: Place(file, start + entry["data_offsets"][0], entry["dtype"], tuple(entry["shape"]), _size(entry))
        for name, entry in entries.items()
        if name != "__metadata__"
    }
    return dict(sorted(found.items(), key=lambda item: item[1].offset))


def _size(entry: dict[str, list[int]]) -> int:
    begin, end = entry["data_offsets"]
    return end - begin


def lay_out(tensors: Iterable[Outline], metadata: dict[str, str]) -> tuple[bytes, dict[str, int], int]:
    """Header of a file of ``tensors``, the offset of each in the file, and the file's size, all in bytes."""
    ordered = sorted(tensors, key=lambda one: -DTYPE_BITS.get(one.dtype, 8))
    entries: dict[str, object] = {"__metadata__": metadata}
    begins: dict[str, int] = {}
    end = 0
    for one in ordered:
        begins[one.name] = end
        entries[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [end, end + one.bytes]}
        end += one.bytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    return header, {name: len(header) + begin for name, begin in begins.items()}, len(header) + end


class Reader:
    """Reads parts of files by position, from several threads at once. Use as a context manager."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._open = {file: os.open(file, os.O_RDONLY) for file in files}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def read(self, place: Place, start_bytes: int = 0, length_bytes: int | None = None) -> bytearray:
        """``length_bytes`` of the tensor at ``place`` from ``start_bytes``; all of it by default."""
        length = place.bytes - start_bytes if length_bytes is None else length_bytes
        buffer = bytearray(length)
        view, done = memoryview(buffer), 0
        while done < length:
            count = os.preadv(self._open[place.file], [view[done:]], place.offset + start_bytes + done)
            if not count:
                raise InputError(f"{place.file} ended while it was read.", fix="Download it again.")
            done += count
        return buffer


def write_at(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset`` of an open file."""
    view, done = memoryview(data).cast("B"), 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)
