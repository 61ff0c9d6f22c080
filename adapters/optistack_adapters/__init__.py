"""Adapters: how each engine is launched and read back. No engine is imported here."""
