"""Decontamination: training rows that hold an evaluation's items, by equal text or runs of 13 or 8 words in common
(arXiv 2005.14165, 2407.21783). Runs count where the numbers agree and at most 10 items share them."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.core.conversation import spoken
from pipeline.core.storage import Record
from pipeline.selection.pairing import LabelledRow
from pipeline.traces.pii import normalised

RUN, SHORT_RUN = 13, 8
MIN_COVERED = 0.5
MAX_SHARED = 10
MIN_WORDS = 3
SHOWN = 160
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # Thai, kana, Han: a character is a word
_WORD = re.compile(rf"\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+")
_APOSTROPHE = re.compile("['\u2019\u02bc]")
Words = list[str]


def words(text: str) -> Words:
    """The words of a text in lower case, without punctuation; 1,200.50 and 1200.5 are one number."""
    plain = _APOSTROPHE.sub("", normalised(text).casefold())
    return [_number(word) if word[0].isdigit() else word for word in _WORD.findall(plain)]


def numbers(tokens: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in tokens if word[0].isdigit())


class Hit(Record):
    """A training row and the item whose text it holds. `text` is the item's, never a user's."""

    trace_id: str
    suite: str
    item: int
    """Place among the suite's texts, from 0."""
    rule: str
    text: str


class ContaminationReport(Record):
    rows: int
    hits: int
    by_suite: dict[str, int]
    """Rows that hold a text of the suite; a text may be in several suites."""

    @property
    def share(self) -> float:
        return self.hits / self.rows if self.rows else 0.0


class _Text(NamedTuple):
    words: Words
    places: list[tuple[str, int]]
    shown: str


_Match = tuple[_Text, str]
"""What a row holds, and by which rule."""


class Index:
    def __init__(self, held_out: Mapping[str, Sequence[str]]) -> None:
        """`held_out`: suite to the texts of its items (prompts, and worked solutions where there are any). Numbers
        alone, or too few words, are not looked for."""
        self._exact: dict[str, int] = {}
        self._texts: list[_Text] = []
        for suite, texts in sorted(held_out.items()):
            for place, text in enumerate(texts):
                tokens = words(text)
                if len(tokens) < MIN_WORDS or len(numbers(tokens)) == len(tokens):
                    continue
                at = self._exact.setdefault(" ".join(tokens), len(self._texts))
                if at == len(self._texts):
                    self._texts.append(_Text(tokens, [], text if len(text) <= SHOWN else f"{text[:SHOWN]}..."))
                self._texts[at].places.append((suite, place))
        self._long, self._short = (_runs([text.words for text in self._texts], size) for size in (RUN, SHORT_RUN))
        self._coverable: defaultdict[int, set[int]] = defaultdict(set)
        """By text, the places of the words that are in some short run that counts."""
        for at, offset in (each for owners in self._short.values() for each in owners):
            self._coverable[at].update(range(offset, offset + SHORT_RUN))

    def check(self, rows: Sequence[LabelledRow]) -> tuple[list[LabelledRow], ContaminationReport, list[Hit]]:
        """The rows that hold no item, the report, and the rows that hold one with what they hold."""
        of_prompt: dict[str, _Match | None] = {}
        clean: list[LabelledRow] = []
        by_suite: Counter[str] = Counter()
        hits: list[Hit] = []
        for row in rows:
            if row.prompt not in of_prompt:
                of_prompt[row.prompt] = self._match(contents(row.prompt))
            match = of_prompt[row.prompt] or self._match([row.completion, row.reference or ""])
            if match is None:
                clean.append(row)
                continue
            text, rule = match
            by_suite.update({suite for suite, _ in text.places})
            suite, item = text.places[0]
            hits.append(Hit(trace_id=row.trace_id, suite=suite, item=item, rule=rule, text=text.shown))
        report = ContaminationReport(rows=len(rows), hits=len(hits), by_suite=dict(sorted(by_suite.items())))
        return clean, report, hits

    def _match(self, part: Sequence[str]) -> _Match | None:
        """The first item that a part of a row (its messages) holds, by the strictest rule that finds one."""
        lines = [[words(line) for line in message.splitlines()] for message in part]
        messages = [[word for line in message for word in line] for message in lines]
        whole = [word for message in messages for word in message]
        for tokens in (whole, *messages, *(line for message in lines for line in message)):
            if (at := self._exact.get(" ".join(tokens))) is not None:
                return self._texts[at], "exact"
        for place, at, offset in _shared(whole, self._long, RUN):
            if self._same_numbers(whole, place - offset, at):
                return self._texts[at], "13-gram"
        starts: defaultdict[int, set[int]] = defaultdict(set)
        covered: defaultdict[int, set[int]] = defaultdict(set)
        for place, at, offset in _shared(whole, self._short, SHORT_RUN):
            starts[at].add(place - offset)
            covered[at].update(range(offset, offset + SHORT_RUN))
        for at, seen in covered.items():
            enough = len(seen) >= MIN_COVERED * len(self._coverable[at])
            if enough and any(self._same_numbers(whole, start, at) for start in sorted(starts[at])):
                return self._texts[at], "8-gram"
        return None

    def _same_numbers(self, whole: Words, start: int, at: int) -> bool:
        """Whether the numbers around `start` follow the item's in its order; some may be missing on either side."""
        text = self._texts[at].words
        slack = len(text) // 4 + 1  # for words inserted or left out
        asked, there = numbers(text), numbers(whole[max(0, start - slack) : start + len(text) + slack])
        return _follow(asked, there) or _follow(there, asked)


def _follow(some: Sequence[str], among: Sequence[str]) -> bool:
    rest = iter(among)
    return all(number in rest for number in some)


Runs = Mapping[str, Sequence[tuple[int, int]]]
"""The texts that have a run of words, and at which word."""


def _runs(texts: Sequence[Words], size: int) -> Runs:
    """All runs of `size` words of the texts, but for boilerplate."""
    owners: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for at, tokens in enumerate(texts):
        for offset in range(len(tokens) - size + 1):
            owners[" ".join(tokens[offset : offset + size])].append((at, offset))
    return {run: where for run, where in owners.items() if len({at for at, _ in where}) <= MAX_SHARED}


def _shared(tokens: Words, runs: Runs, size: int) -> Iterator[tuple[int, int, int]]:
    """Place in the row, the text, and place in the text, of each run that they share."""
    for place in range(len(tokens) - size + 1 if runs else 0):
        for at, offset in runs.get(" ".join(tokens[place : place + size]), ()):
            yield place, at, offset


def contents(prompt: str, roles: Sequence[str] = ()) -> list[str]:
    """The texts of a chat prompt's messages: of all that were said, or of the given roles."""
    messages = spoken(json.loads(prompt))
    return [message["content"] or "" for message in messages if not roles or message["role"] in roles]


def _number(word: str) -> str:
    whole, _, fraction = word.replace(",", "").partition(".")
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
