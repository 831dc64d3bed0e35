"""Certified radii: a certificate is a theorem plus a failure probability; anything weaker is called an estimate."""
