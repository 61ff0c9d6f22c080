"""How values look on a screen: each module turns one kind of value into rich renderables.

``wide`` is true in a pipe: one line for each thing, names in full, nothing wraps.
"""
