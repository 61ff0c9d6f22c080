"""Scripts that run in SGLang's Python, not in ours: started by path, never imported here.

They keep to Python 3.10 and the standard library, and import SGLang's packages by name where they need them.
"""
