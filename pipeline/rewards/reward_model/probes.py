"""Probes: a logged answer and a twin that breaks one rule of the policy and differs in nothing else. Which twin is
drawn by a hash of the answer; an answer of which none can be made is not counted."""

import hashlib
import json
import re
from collections.abc import Sequence
from itertools import pairwise

from pipeline.recipe.rewards import Probe

_NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?!\w)")
_ENTITY = re.compile(r"(?<!\w)[^\W\d_a-zß-ÿ]\w*(?!\w)")
REFUSAL = "I'm sorry, but I can't help with that."
_EDGE = ".,;:!?()[]\"'"


def twin(probe: Probe, prompt: str, answer: str) -> str | None:
    """The violating twin of an answer, or None where this probe can make none. `prompt`: chat messages as JSON."""
    if probe.kind == "append":
        return None if probe.text.casefold() in answer.casefold() else f"{answer.rstrip()} {probe.text}"
    if probe.kind == "lengthen":
        return _lengthened(answer, probe)
    if probe.kind == "refuse":
        refusal = probe.text or REFUSAL
        return None if answer.strip().casefold().startswith(refusal.casefold()) else refusal
    return _swapped(probe, prompt, answer)


def _lengthened(answer: str, probe: Probe) -> str:
    longer = answer.rstrip()
    while len(longer) < probe.factor * len(answer):
        longer = f"{longer} {probe.text or answer.strip()}"
    return longer


def _swapped(probe: Probe, prompt: str, answer: str) -> str | None:
    texts = [str(message.get("content") or "") for message in json.loads(prompt)]
    others = _other_values(probe, texts, answer)
    if not others:
        return None
    turn = int.from_bytes(hashlib.sha256(f"{probe.name}\x1f{prompt}\x1f{answer}".encode()).digest()[:8])
    value, other = others[turn % len(others)]
    return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: other, answer)


def _other_values(probe: Probe, texts: Sequence[str], answer: str) -> list[tuple[str, str]]:
    """Each value that prompt and answer share, with each other of its sort that the answer does not hold; sorted."""
    lines = [line for text in texts for line in text.splitlines()]
    if probe.value == "row":
        rows = [[word.strip(_EDGE) for word in line.split()] for line in lines]
        alike = [(a, b) for a, b in _all_pairs(rows) if len(a) == len(b) >= 3]
        candidates = {(x, y) for a, b in alike for x, y in zip(a, b, strict=True)}
    else:
        pattern = _NUMBER if probe.value == "number" else _ENTITY
        # A sentence's first word is capitalised whatever it names.
        starts = {words[0] for line in lines if (words := line.split())} if probe.value == "entity" else set[str]()
        values = sorted({value for text in texts for value in pattern.findall(text)} - starts)
        candidates = {(x, y) for x in values for y in values}
    return sorted((x, y) for x, y in candidates if x and y and x != y and _holds(answer, x) and not _holds(answer, y))


def _all_pairs(rows: Sequence[Sequence[str]]) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Neighbouring lines of as many words, both ways: a table's rows follow one another."""
    return [pair for a, b in pairwise(rows) for pair in ((a, b), (b, a))]


def _holds(answer: str, value: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", answer) is not None
