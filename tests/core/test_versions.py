"""A pre-release counts as its release."""

from __future__ import annotations

import pytest

from optistack.versions import at_least, within


@pytest.mark.parametrize("version", ["0.33.0rc1", "0.33.0.dev4+gabc", "0.33.0", "0.33.1", "0.34"])
def test_these_are_at_least_that(version: str) -> None:
    assert at_least(version, "0.33")


def test_the_one_before_is_not() -> None:
    assert not at_least("0.32.9.post1", "0.33")


def test_a_range_takes_pre_releases_and_nothing_takes_all() -> None:
    assert within("0.33.1.dev2", ">=0.26,<0.34")
    assert not within("0.34.0", ">=0.26,<0.34")
    assert within("anything", "")
    with pytest.raises(ValueError, match="anything"):
        within("anything", ">=1")
