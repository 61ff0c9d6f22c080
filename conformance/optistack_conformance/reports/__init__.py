"""Renderings of a ``Report``: ``terminal`` and ``html``. JSON is the report itself; JUnit is written by pytest."""
