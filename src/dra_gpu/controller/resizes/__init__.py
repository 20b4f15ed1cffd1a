"""Moving capacity between claims, as far as it is the controller's: what is wanted, what the scheduler grants.

docs/adr/resize-protocol.md has the protocol and its letters: A allocated, G growths, P permitted, T wanted, L in force,
B given back.
"""
