"""Training: one entry point, `python -m pipeline.training PLAN`; `plan.json` in, `result.json` out, checkpoints beside.

The same call runs as a local subprocess, as the processes of a node, and in a pod; it trains with TRL or hands the plan
to NeMo RL. `plan`, `result`, `journal`, `goodput`, `sentinel`, `checkpoints` and `nemo` are light; what imports torch
runs inside the training processes: `worker` and what it calls.
"""
