"""Flags, choices and defaults of the versions that the adapters were tried with, one file a version.

Made by ``scripts/snapshot_engine.py`` from the wheels on PyPI and read by :mod:`optistack.engines.snapshots`.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
