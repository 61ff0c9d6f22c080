"""Safetensors headers: 8 bytes of little-endian length, that many bytes of JSON, then the data, which is not read.

Layout: https://huggingface.co/docs/safetensors (section "Format"). The library itself maps the file and needs a
framework to be of use, so these few lines are ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Set
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from optistack.errors import InputError

INDEX = "model.safetensors.index.json"

# Sub-byte types are counted in bits by the format itself.
DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}
_LENGTH_BYTES = 8
_LONGEST_HEADER_BYTES = 100_000_000  # the limit of the format's own reader
_SAMPLE_BYTES = 4096
_AGAIN = "Download it again."


class Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def values(self) -> int:
        return math.prod(self.shape)


class Shard(NamedTuple):
    """One file: its tensors, and the bytes that identify it: its header, and of each kind of tensor the first data."""

    file: Path
    tensors: dict[str, Tensor]
    identity: bytes


def read_shard(file: Path) -> Shard:
    """Read and check the header of ``file``. InputError naming the file if it is damaged or incomplete."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(_LENGTH_BYTES)
            length = _header_length(file, start, size)
            header = stream.read(length)
            entries = _entries(file, header)
            tensors = _tensors(file, entries, size - _LENGTH_BYTES - length)
            samples = _samples(stream, entries, _LENGTH_BYTES + length)
    except FileNotFoundError:
        raise InputError(f"{file} is missing.", fix=_AGAIN) from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}.", fix="Check its permissions.") from None
    return Shard(file, tensors, header + samples)


def _entries(file: Path, header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header)
    except ValueError:
        raise InputError(f"The header of {file} is not JSON.", fix=_AGAIN) from None
    if not isinstance(entries, dict):
        raise InputError(f"The header of {file} is not a JSON object.", fix=_AGAIN)
    entries.pop("__metadata__", None)
    return entries


def _tensors(file: Path, entries: dict[str, Any], data_bytes: int) -> dict[str, Tensor]:
    return {name: _tensor(file, name, entry, data_bytes) for name, entry in entries.items()}


def _samples(stream: BinaryIO, entries: dict[str, Any], data_begins: int) -> bytes:
    """The first data of the last tensor of each kind (``q_proj.weight``): a fine-tune may leave all other kinds as they
    were, the embedding at the beginning of a file above all."""
    last = {name[name.rfind(".", 0, name.rfind(".")) + 1 :]: entry for name, entry in entries.items()}
    parts = []
    for entry in last.values():
        begin, end = entry["data_offsets"]
        stream.seek(data_begins + begin)
        parts.append(stream.read(min(_SAMPLE_BYTES, end - begin)))
    return b"".join(parts)


def _header_length(file: Path, start: bytes, size: int) -> int:
    if start == b"version ":
        raise InputError(f"{file} is a Git LFS pointer and not the weights.", fix="Run `git lfs pull` in its folder.")
    if len(start) < _LENGTH_BYTES:
        raise InputError(f"{file} is {size} bytes long, too short for a safetensors file.", fix=_AGAIN)
    length = int.from_bytes(start, "little")
    if length > _LONGEST_HEADER_BYTES:
        raise InputError(f"{file} is not a safetensors file (its header would be {length} bytes).", fix=_AGAIN)
    if _LENGTH_BYTES + length > size:
        raise InputError(f"{file} ends inside its header: {size} bytes, {_LENGTH_BYTES + length} needed.", fix=_AGAIN)
    return length


def _tensor(file: Path, name: str, entry: Any, data_bytes: int) -> Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        values = math.prod(shape)
        sound = 0 <= begin <= end and min(shape, default=0) >= 0 and isinstance(values + begin + end, int)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise InputError(f"The header of {file} describes tensor {name!r} wrongly.", fix=_AGAIN)
    if end > data_bytes:
        raise InputError(
            f"{file} is cut off: tensor {name!r} ends {end - data_bytes} bytes after the file.", fix=_AGAIN
        )
    bits = DTYPE_BITS.get(dtype)
    if bits is not None and values * bits != 8 * (end - begin):
        raise InputError(
            f"{file} gives tensor {name!r} {end - begin} bytes, but {dtype} {list(shape)} takes {values * bits // 8}.",
            fix=_AGAIN,
        )
    return Tensor(dtype, shape, end - begin)


def shards_of(folder: Path) -> tuple[Path, ...]:
    """The safetensors files that make up the checkpoint in ``folder``, in name order; empty if it has none.

    The index decides where there is one, for some repositories carry the same weights twice. InputError when it names
    files that are not there.
    """
    return _files(folder)[0]


def read_shards(folder: Path) -> list[Shard]:
    """Read every file of :func:`shards_of`. InputError also when the index names a tensor that no file has."""
    files, indexed = _files(folder)
    shards = [read_shard(file) for file in files]
    absent = indexed - set().union(*(shard.tensors for shard in shards))
    if absent:
        raise InputError(
            f"{folder / INDEX} names tensor {min(absent)!r}, which no file has.", fix="Download it all again."
        )
    return shards


def _files(folder: Path) -> tuple[tuple[Path, ...], Set[str]]:
    """The files of ``folder``, and the tensors that its index names (none without an index)."""
    index = folder / INDEX
    present = sorted(folder.glob("*.safetensors"))
    if not index.is_file():
        whole = folder / "model.safetensors"
        return ((whole,) if whole in present else tuple(present)), frozenset()
    weight_map = _read_index(index)
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"{index} names {missing[0]}{more}, which {folder} does not have ({len(missing)} of {len(names)} missing).",
            fix="Download the rest of the checkpoint.",
        )
    return tuple(folder / name for name in names), weight_map.keys()


def _read_index(index: Path) -> dict[str, str]:
    """``weight_map`` of an index: tensor name to file name."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        sound = isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values())
    except (OSError, ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise InputError(f"{index} is no index of safetensors files.", fix=_AGAIN)
    return dict(weight_map)
