"""KV scales from what a model really writes to its cache. Needs the extra ``calibrate``, and is imported only by the
command."""
