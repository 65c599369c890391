"""Rewards: what a completion is worth, from logged traces and fresh completions alike, with null where unknown."""
