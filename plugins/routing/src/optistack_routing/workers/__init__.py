"""Several processes that share the work: one decides, the others carry the bytes and ask it."""
