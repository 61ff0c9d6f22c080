"""Other people's evaluations, used as they are: ``lm_eval`` (lm-evaluation-harness), ``k2vv`` (K2 Vendor Verifier)."""
