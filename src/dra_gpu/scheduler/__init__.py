"""kube-scheduler's allocator (v1.37, default features) in Python: which devices a claim would get, or why none.

For the local mode, which has no scheduler, and for explaining a pending pod. Pure: slices, claims and classes in, a
verdict out. A differential test holds it to the real allocator's verdict, devices, order and consumed capacity.
Source: k8s.io/dynamic-resource-allocation v0.37, structured/internal/incubating. Not modelled, because off or unused
with default gates: list attributes in constraints, derived attributes, compatibility groups, binding conditions.
"""
