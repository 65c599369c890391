"""Rollout: a candidate's way to the traffic and, if need be, back."""
