"""Vendors of GPUs: one package each behind the Protocol of `base`. They do not know each other."""
