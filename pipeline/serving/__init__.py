"""Sampling completions from a model directory: the demo, the evaluation and the slots of the gateway all decode by
`loaded.py`, so template and decoding are the same."""
