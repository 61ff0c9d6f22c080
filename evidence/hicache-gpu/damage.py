"""Damage the files of a storage tier that a running engine has in memory, for the start after it to read.

    python evidence/hicache-gpu/damage.py FOLDER

Of the files in the order of their names, every second is cut to half its size, and of the others one bit of every 15th
byte is flipped. Prints how many of each as JSON; exit code 1 where there is none. Only for a folder of a test.
"""

from __future__ import annotations

import json
import sys
from itertools import cycle
from pathlib import Path

FLIPPED = 0x40
"""The highest but one bit of a byte: of the upper byte of a BF16 value one of its exponent."""


def damage(folder: Path) -> dict[str, int]:
    """Damage the files below ``folder``, but for those that do not hold KV, whose names begin with a dot or end in
    ``.json``."""
    done = {"cut": 0, "flipped": 0}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and _holds_kv(path))
    for path, what in zip(files, cycle(done), strict=False):
        data = bytearray(path.read_bytes())
        if what == "cut":
            del data[len(data) // 2 :]
        else:
            data[::15] = bytes(byte ^ FLIPPED for byte in data[::15])
        path.write_bytes(data)
        done[what] += 1
    return done


def _holds_kv(path: Path) -> bool:
    return not path.name.startswith(".") and path.suffix != ".json"


if __name__ == "__main__":
    done = damage(Path(sys.argv[1]))
    print(json.dumps({"damaged": done}))
    sys.exit(0 if all(done.values()) else 1)
