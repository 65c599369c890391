"""Where it runs: manifests, gangs as objects, their lint and cost, and the launcher for a cluster. Knows nothing of
Dagster; README.md leads from a bare cluster to a run."""
