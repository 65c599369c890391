"""`python -m pipeline.training PLAN`: `plan.json` in, `result.json` out. Only `worker` and what it calls import
torch."""
