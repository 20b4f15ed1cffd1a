"""`dra-gpu webhook`: says what is wrong with a claim, template, class or ComputeDomain when it is created.

Fails closed for what it owns only: an object that names no class and no config of ours is allowed, whatever happens.
"""
