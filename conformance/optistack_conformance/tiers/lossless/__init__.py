"""Cases of this part; see the package ``tiers``."""
