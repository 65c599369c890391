"""Serving: sampling completions from a model directory, in a process of its own.

The one place where the loop generates outside training: production traffic of the embedded demo, evaluation and
the slots of the gateway all decode as `loaded.py` does, so they cannot drift apart in template or decoding.
"""
