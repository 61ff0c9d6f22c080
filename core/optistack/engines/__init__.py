"""Engines are other people's programs: optistack installs them beside itself, asks them questions, never imports them.

install  an engine's own environment (``optistack engine install``)
models   the small checkpoints that the examples and tests use (``optistack model fetch``)
probe    what an installed engine is and which flags its parser has
flags    a launch's arguments against such a probe
inside   the scripts that run in an engine's Python rather than in ours
"""
