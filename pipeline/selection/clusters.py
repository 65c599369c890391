"""Clusters of near-identical prompts, and which of them training never sees.

Rule. Two prompts are near-identical when they hold the same numbers and the words of both make up at least four fifths
of the words of either (Jaccard similarity of the sets, the numbers aside; system messages do not count). A templated
question with other numbers is another question. The turns of one conversation are one cluster: a prompt, and those that
begin with all of it. Clusters are closed under this, and a cluster is wholly held out or
wholly trained on. It is held out when the hash of any of its members is below the share: who joins a cluster later
cannot bring a prompt that was held out into training, unless the cluster outgrows the share. Prompts are short, so
the join is exact (no MinHash), by prefix filtering (Bayardo et al. 2007), as far as NEIGHBOURS goes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.selection.contamination import contents, numbers, words

SIMILARITY = 0.8
NEIGHBOURS = 256
"""A prompt is compared with so many of those that share a word of its prefix, and all its numbers: without a bound a
template without numbers would cost the square of its prompts."""
_SPOKEN = ("user", "assistant", "tool")


class PromptSketch(NamedTuple):
    """What of a prompt decides whether another one is near-identical."""

    numbers: tuple[str, ...]
    words: frozenset[str]

    @classmethod
    def of(cls, prompt: str) -> PromptSketch:
        texts = contents(prompt, _SPOKEN) or contents(prompt)
        tokens = words("\n".join(texts))
        return cls(tuple(sorted(numbers(tokens))), frozenset(tokens).difference(numbers(tokens)))

    def is_near(self, other: PromptSketch) -> bool:
        shared = len(self.words & other.words)
        return self.numbers == other.numbers and shared >= SIMILARITY * (len(self.words) + len(other.words) - shared)


def cluster(prompts: Iterable[str]) -> dict[str, str]:
    """Each distinct prompt's cluster: 16 hexadecimal digits, the hash of its smallest member."""
    members: defaultdict[PromptSketch, list[str]] = defaultdict(list)
    for prompt in sorted(set(prompts)):
        members[PromptSketch.of(prompt)].append(prompt)
    tops = _one_per_conversation(_linked(list(members)), list(members.values()))
    smallest: dict[int, str] = {}
    for top, (first, *_) in zip(tops, members.values(), strict=True):
        smallest[top] = min(first, smallest.get(top, first))
    names = {top: _hash(prompt) for top, prompt in smallest.items()}
    return {prompt: names[top] for top, each in zip(tops, members.values(), strict=True) for prompt in each}


def _one_per_conversation(tops: list[int], members: Sequence[Sequence[str]]) -> list[int]:
    """The clusters, those joined that hold turns of one conversation."""
    places = {prompt: place for place, prompts in enumerate(members) for prompt in prompts}
    joined = {top: top for top in tops}

    def top(name: int) -> int:
        while joined[name] != name:
            joined[name] = name = joined[joined[name]]
        return name

    for prompt, place in places.items():
        for before in _earlier_turns(prompt):
            if before in places:
                joined[top(tops[places[before]])] = top(tops[place])
    return [top(name) for name in tops]


def _earlier_turns(prompt: str) -> Iterator[str]:
    """The prompts of the turns before, as prompts are written: each ends with a user's message or a tool's result."""
    if prompt.count('"role": "user"') + prompt.count('"role": "tool"') < 2:
        return
    try:
        messages = json.loads(prompt)
    except ValueError:
        return
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


def _linked(gists: list[PromptSketch]) -> list[int]:
    """Each gist's cluster, named by the place of one of its gists. Joins by the rarest words, where near ones meet."""
    seen_in = Counter(word for gist in gists for word in gist.words)
    rarest = [sorted(gist.words, key=lambda word: (seen_in[word], word)) for gist in gists]
    above = list(range(len(gists)))

    def top(place: int) -> int:
        while above[place] != place:
            above[place] = place = above[above[place]]  # halves the path for the next search
        return place

    sharing: defaultdict[tuple[tuple[str, ...], str], list[int]] = defaultdict(list)
    for place in sorted(range(len(gists)), key=lambda place: (len(rarest[place]), rarest[place])):
        gist, size = gists[place], len(rarest[place])
        for word in rarest[place][: size - math.ceil(SIMILARITY * size - 1e-9) + 1]:
            bucket = sharing[gist.numbers, word]
            for other in bucket[-NEIGHBOURS:]:
                if len(rarest[other]) >= SIMILARITY * size and gist.is_near(gists[other]):
                    above[top(other)] = top(place)
            bucket.append(place)
    return [top(place) for place in range(len(gists))]
