"""Evaluation libraries of others, each in a Python environment of its own: they share no package with this project.

`environment` runs our scripts in theirs and hands plain JSON over, `scripts/` is what runs there.
"""
