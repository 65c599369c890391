"""Clusters of near-identical prompts, and which of them training never sees.
Near-identical: the same numbers and a Jaccard similarity of the words of at least 0.8, or turns of one conversation."""

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from pipeline.selection.contamination import contents, numbers, words

SIMILARITY = 0.8
NEIGHBOURS = 256
"""Prompts that one is compared with, of those that share a rare word and all numbers: this bounds the cost."""


class PromptSketch(NamedTuple):
    numbers: tuple[str, ...]
    words: frozenset[str]

    @classmethod
    def of(cls, prompt: str) -> "PromptSketch":
        texts = contents(prompt, ("user", "assistant", "tool")) or contents(prompt)
        tokens = words("\n".join(texts))
        return cls(tuple(sorted(numbers(tokens))), frozenset(tokens).difference(numbers(tokens)))

    def is_near(self, other: "PromptSketch") -> bool:
        shared = len(self.words & other.words)
        return self.numbers == other.numbers and shared >= SIMILARITY * (len(self.words) + len(other.words) - shared)


def cluster(prompts: Iterable[str]) -> dict[str, str]:
    """Each distinct prompt's cluster: 16 hexadecimal digits, the hash of its smallest member."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    members: defaultdict[PromptSketch, list[str]] = defaultdict(list)
    for prompt in sorted(set(prompts)):
        members[PromptSketch.of(prompt)].append(prompt)
    places = {prompt: place for place, prompts in enumerate(members.values()) for prompt in prompts}
    turns = ((places[b], place) for prompt, place in places.items() for b in _earlier_turns(prompt) if b in places)
    one, other = np.array([(0, 0), *_near(list(members)), *turns]).T  # the first is near itself: there is always a link
    graph = coo_array((np.ones(len(one)), (one, other)), shape=(max(1, len(members)),) * 2)
    tops: list[int] = connected_components(graph, directed=False)[1].tolist()[: len(members)]
    smallest: dict[int, str] = {}
    for top, (first, *_) in zip(tops, members.values(), strict=True):
        smallest[top] = min(first, smallest.get(top, first))
    return {prompt: _hash(smallest[tops[place]]) for prompt, place in places.items()}


def _earlier_turns(prompt: str) -> Iterator[str]:
    """The prompts of the turns before: each ends with a user's message or a tool's result."""
    if prompt.count('"role": "user"') + prompt.count('"role": "tool"') < 2:
        return
    messages = json.loads(prompt)
    for end in range(1, len(messages)):
        if messages[end - 1]["role"] in ("user", "tool"):
            yield json.dumps(messages[:end], ensure_ascii=False)


def held_out(clusters: Mapping[str, str], share: float) -> frozenset[str]:
    """The clusters that training never sees, `share` of all; never all of them, and none beyond that share in size."""
    sizes = Counter(clusters.values())
    limit = max(1.0, share * len(clusters))
    drawn = {name for prompt, name in clusters.items() if int(_hash(prompt), 16) < share * 16**16}
    chosen = {name for name in drawn if sizes[name] <= limit}
    return frozenset(chosen - {max(sizes)} if sizes else chosen)


def _hash(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def _near(sketches: list[PromptSketch]) -> Iterator[tuple[int, int]]:
    """The places of two that are near-identical: an exact join by prefix filtering (Bayardo et al. 2007), as far as
    NEIGHBOURS goes."""
    seen_in = Counter(word for sketch in sketches for word in sketch.words)
    rarest = [sorted(sketch.words, key=lambda word: (seen_in[word], word)) for sketch in sketches]
    sharing: defaultdict[tuple[tuple[str, ...], str], list[int]] = defaultdict(list)
    for place in sorted(range(len(sketches)), key=lambda place: (len(rarest[place]), rarest[place])):
        sketch, size = sketches[place], len(rarest[place])
        for word in rarest[place][: size - math.ceil(SIMILARITY * size - 1e-9) + 1]:
            bucket = sharing[sketch.numbers, word]
            for other in bucket[-NEIGHBOURS:]:
                if len(rarest[other]) >= SIMILARITY * size and sketch.is_near(sketches[other]):
                    yield other, place
            bucket.append(place)
