"""Conformance: does a stack of optimizations still answer as the plain model does?

``client`` talks to the server, ``tiers`` holds the cases (plain pytest functions), ``statistics`` the judgements,
``evals`` the task items, ``runner`` runs a selection and returns a ``Report``, ``reports`` renders it, and ``faults``
holds the servers that are wrong on purpose, which the suite itself is tested with.
"""
