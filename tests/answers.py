"""Answers as an engine gives them."""

from pipeline.serving.inference import Answer


def answer(text: str, latency_s: float = 0.0) -> Answer:
    """One that ended by itself."""
    return Answer(key="", text=text, tokens=8, prompt_tokens=9, stop="stop", latency_s=latency_s)
