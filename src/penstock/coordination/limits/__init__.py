"""Rate limits: several windows at once, one call each."""
