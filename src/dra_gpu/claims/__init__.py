"""What a claim becomes on its node: plan, steps, journal, locks, engine, reconciliation.

Vendors are known by the Protocol of `vendors.base` alone.
"""
