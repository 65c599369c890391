"""Registry: a candidate on record in MLflow, which follows the record of its rollout."""
