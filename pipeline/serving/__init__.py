"""Serving: sampling completions from a model directory, in a process of its own.

The one place where the loop generates outside training: production traffic of the embedded demo, evaluation and
the replayed traffic of a rollout all come through `sample`, so they cannot drift apart in template or decoding.
"""
