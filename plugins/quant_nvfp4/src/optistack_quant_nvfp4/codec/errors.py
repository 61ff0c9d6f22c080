"""What cannot be packed."""

from __future__ import annotations

from collections.abc import Sequence

from optistack.errors import InputError


class NonFiniteError(InputError):
    """A tensor holds NaN or infinity."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Tensor {name or '(unnamed)'} holds values that are NaN or infinite.",
            fix="Fetch the shard again and compare its checksum; a checkpoint that is really so cannot be quantized.",
        )


class ShapeError(InputError):
    """A tensor has a shape that its format does not allow."""

    def __init__(self, name: str, shape: Sequence[int], needs: str) -> None:
        super().__init__(
            f"Tensor {name or '(unnamed)'} of shape {list(shape)} needs {needs}.",
            fix="Leave it out of what is converted, or check that source and format belong together.",
        )
