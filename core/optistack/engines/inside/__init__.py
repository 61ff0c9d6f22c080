"""Scripts that run in an engine's Python, not in ours: started by path with ``main.py``, never imported here.

They keep to Python 3.9 and the standard library, and import the engine's packages by name where they need them.
"""
