"""Checkpoints that survive a kill at any instant: committed, verified, retained, mirrored, resumed from."""
