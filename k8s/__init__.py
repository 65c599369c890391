"""Where it runs: the home of manifests, renderers and the launcher for a cluster. Training runs locally so far.

What a cluster needs from the trainer is in place: one entry point (`python -m pipeline.training PLAN`), a plan that
names content by digest, checkpoints that survive a kill, and exit codes (0 done, 143 run me again, 64 never retry).
"""
