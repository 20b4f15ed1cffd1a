"""An API server in memory, spoken to over real HTTP: what local mode and component tests have in place of a cluster.

It keeps Kubernetes' rules where a driver can trip over them (resource versions, watches with bookmarks and
compaction, optimistic locking, limits of ResourceSlices, fields that a server with a feature gate off drops without
a word) and leaves out everything else: no authorization beyond one bearer token, no admission, no controllers.
"""
