"""``docs/compatibility.md``: every pair of plugins, planned for real. ``python -m scripts.compatibility`` writes it."""
