"""Where it runs: manifests, gangs as objects, their lint and their cost, and the launcher for a cluster.

Knows plans and recipes; knows nothing of Dagster. README.md leads from a bare cluster to a run.
"""
