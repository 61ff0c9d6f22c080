"""Routing policies as pure code."""
