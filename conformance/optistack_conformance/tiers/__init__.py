"""The cases, plain pytest functions: ``contract`` (0), ``lossless`` (1), ``lossy`` (2), ``plugins`` (their own)."""
