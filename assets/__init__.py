"""What exists: the loop's artefacts as Dagster assets, thin over `pipeline` and `evals`."""
