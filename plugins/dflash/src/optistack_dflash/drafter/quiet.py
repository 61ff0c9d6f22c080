"""Loading with transformers, without its progress bars in what a command prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_bars() -> Iterator[None]:
    """Within the block transformers draws no progress bars; its warnings and errors stay."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()
