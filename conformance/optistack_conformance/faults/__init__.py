"""Servers that are wrong on purpose, one fault each: what the suite itself is tested with.

``catalog`` lists the faults, ``toy`` is a small language model with a KV cache, tiers and drafting to be wrong in, and
``server`` serves it over HTTP in vLLM's dialect.
"""
