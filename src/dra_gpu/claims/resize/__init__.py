"""Moving capacity between claims, as far as it is the node's: what is in force, what is given back, what comes next.

docs/adr/resize-protocol.md has the protocol and its letters: A allocated, P permitted, T wanted, L limit, B given back.
"""
