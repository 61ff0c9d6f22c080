"""Scripts that run in vLLM's own Python, not in ours: started by path, never imported here.

They keep to Python 3.9 and the standard library, and import vLLM's modules by name where they need them.
"""
