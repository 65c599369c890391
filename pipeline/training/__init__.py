"""Training: one entry point, `python -m pipeline.training PLAN`; `plan.json` in, `result.json` out, checkpoints beside.

The same call runs as a local subprocess, under torchrun and in a pod. Only `grpo`, `dpo`, `fit` and `__main__` import
torch, and they run inside that process.
"""
