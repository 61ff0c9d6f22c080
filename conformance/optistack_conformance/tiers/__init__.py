"""The cases, plain pytest functions: ``contract`` (tier 0), ``lossless`` (1), ``lossy`` (2), ``plugins`` (their own)."""
