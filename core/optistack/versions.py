"""Engine versions against bounds. A pre-release counts as its release: what a release has, its candidates have."""

from __future__ import annotations


def within(version: str, specifier: str) -> bool:
    """Whether ``version`` is in a PEP 440 ``specifier`` (empty: all). Raises ValueError when one of them is none."""
    if not specifier:
        return True
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    return SpecifierSet(specifier).contains(Version(version).base_version)


def at_least(version: str, bound: str) -> bool:
    """Whether ``version`` is ``bound`` or newer. Raises ValueError when one of them is no version."""
    from packaging.version import Version

    return Version(version).release >= Version(bound).release
