"""Decontamination: training rows that hold an evaluation's items, by equal text or runs of 13 or 8 words in common
(arXiv 2005.14165, 2407.21783). Runs count where the numbers agree and at most 10 items share them."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

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
    by_rule: dict[str, int]
    by_suite: dict[str, int]
    """Rows that hold a text of the suite; a text may be in several suites."""
    texts: dict[str, int]
    """Texts of each suite."""
    unidentifying: int
    """Texts that were not looked for: numbers alone, or too few words."""

    @property
    def share(self) -> float:
        return self.hits / self.rows if self.rows else 0.0


class _Text(NamedTuple):
    words: int
    numbers: tuple[str, ...]
    places: list[tuple[str, int]]
    shown: str


class _Match(NamedTuple):
    text: _Text
    rule: str


class Index:
    def __init__(self, held_out: Mapping[str, Sequence[str]]) -> None:
        """`held_out`: suite to the texts of its items (prompts, and worked solutions where there are any)."""
        self._sizes = {suite: len(texts) for suite, texts in held_out.items()}
        self._unidentifying = 0
        self._exact: dict[str, int] = {}
        self._texts: list[_Text] = []
        coded: list[np.ndarray] = []
        for suite, texts in sorted(held_out.items()):
            for place, text in enumerate(texts):
                tokens = words(text)
                if len(tokens) < MIN_WORDS or len(numbers(tokens)) == len(tokens):
                    self._unidentifying += 1
                    continue
                at = self._exact.setdefault(" ".join(tokens), len(self._texts))
                if at == len(self._texts):
                    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
                    self._texts.append(_Text(len(tokens), numbers(tokens), [], shown))
                    coded.append(_coded(tokens))
                self._texts[at].places.append((suite, place))
        self._longest = max((text.words for text in self._texts), default=0)
        self._long = _Runs(coded, RUN)
        self._short = _Runs(coded, SHORT_RUN)

    def check(self, rows: Sequence[LabelledRow]) -> tuple[list[LabelledRow], ContaminationReport, list[Hit]]:
        """The rows that hold no item, the report, and the rows that hold one with what they hold."""
        of_prompt: dict[str, _Match | None] = {}
        clean: list[LabelledRow] = []
        by_rule: Counter[str] = Counter()
        by_suite: Counter[str] = Counter()
        hits: list[Hit] = []
        for row in rows:
            if row.prompt not in of_prompt:
                of_prompt[row.prompt] = self._match(contents(row.prompt))
            match = of_prompt[row.prompt] or self._match([row.completion, row.reference or ""])
            if match is None:
                clean.append(row)
                continue
            by_rule[match.rule] += 1
            by_suite.update({suite for suite, _ in match.text.places})
            suite, item = match.text.places[0]
            hits.append(Hit(trace_id=row.trace_id, suite=suite, item=item, rule=match.rule, text=match.text.shown))
        report = ContaminationReport(
            rows=len(rows),
            hits=by_rule.total(),
            by_rule=dict(sorted(by_rule.items())),
            by_suite=dict(sorted(by_suite.items())),
            texts=self._sizes,
            unidentifying=self._unidentifying,
        )
        return clean, report, hits

    def _match(self, part: Sequence[str]) -> _Match | None:
        """The first item that a part of a row (its messages) holds, by the strictest rule that finds one."""
        lines = [[words(line) for line in message.splitlines()] for message in part]
        messages = [[word for line in message for word in line] for message in lines]
        whole = [word for message in messages for word in message]
        alone = [whole, *messages, *(line for message in lines for line in message)]
        for tokens in alone:
            if len(tokens) <= self._longest and (at := self._exact.get(" ".join(tokens))) is not None:
                return _Match(self._texts[at], "exact")
        coded = _coded(whole)
        for place, offset, at in self._long.matches(coded):
            if self._same_numbers(whole, place - offset, at):
                return _Match(self._texts[at], "13-gram")
        starts: dict[int, set[int]] = {}
        covered: dict[int, set[int]] = {}
        for place, offset, at in self._short.matches(coded):
            starts.setdefault(at, set()).add(place - offset)
            covered.setdefault(at, set()).update(range(offset, offset + SHORT_RUN))
        for at, seen in covered.items():
            enough = len(seen) >= MIN_COVERED * self._short.coverable[at]
            if enough and any(self._same_numbers(whole, start, at) for start in sorted(starts[at])):
                return _Match(self._texts[at], "8-gram")
        return None

    def _same_numbers(self, whole: Words, start: int, at: int) -> bool:
        """Whether the numbers around `start` follow the item's in its order; some may be missing on either side."""
        text = self._texts[at]
        slack = text.words // 4 + 1  # for words inserted or left out
        there = numbers(whole[max(0, start - slack) : start + text.words + slack])
        return _follow(text.numbers, there) or _follow(there, text.numbers)


def _follow(some: Sequence[str], among: Sequence[str]) -> bool:
    rest = iter(among)
    return all(number in rest for number in some)


class _Runs:
    """All runs of `size` words of the texts, but for boilerplate: sorted hashes, with the text and place of each."""

    def __init__(self, texts: Sequence[np.ndarray], size: int) -> None:
        self._size = size
        runs = [_hashed(text, size) for text in texts]
        lengths = np.array([len(each) for each in runs], np.int64)
        hashes = np.concatenate([*runs, np.zeros(0, np.uint64)])
        owners = np.repeat(np.arange(len(runs)), lengths)
        offsets = np.arange(len(hashes)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        distinct = np.concatenate([*(np.unique(each) for each in runs), np.zeros(0, np.uint64)])
        known, owned = np.unique(distinct, return_counts=True)
        telling = ~np.isin(hashes, known[owned > MAX_SHARED])
        order = np.flatnonzero(telling)[np.argsort(hashes[telling], kind="stable")]
        self._hashes, self._owners, self._offsets = hashes[order], owners[order], offsets[order]
        bits = len(order).bit_length() + 4
        self._shift = np.uint64(64 - bits)
        self._maybe = np.zeros(1 << bits, np.bool_)  # by first bits; spares most runs of clean text the search
        self._maybe[self._hashes >> self._shift] = True
        self.coverable = [0] * len(texts)
        """Words of each text that are in some run that counts."""
        ends = np.zeros(len(texts), np.int64)
        for owner, offset in zip(owners[telling].tolist(), offsets[telling].tolist(), strict=True):
            self.coverable[owner] += offset + size - max(offset, int(ends[owner]))
            ends[owner] = offset + size

    def matches(self, coded: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Place in the row, place in the text, and the text, of each run that the two share."""
        runs = _hashed(coded, self._size)
        places = np.flatnonzero(self._maybe[runs >> self._shift])
        first = np.searchsorted(self._hashes, runs[places], "left")
        last = np.searchsorted(self._hashes, runs[places], "right")
        for place, begin, end in zip(places.tolist(), first.tolist(), last.tolist(), strict=True):
            for entry in range(begin, end):
                yield place, int(self._offsets[entry]), int(self._owners[entry])


def contents(prompt: str, roles: Sequence[str] = ()) -> list[str]:
    """The texts of a chat prompt's messages: of all that were said, or of the given roles."""
    messages = spoken(json.loads(prompt))
    return [message["content"] or "" for message in messages if not roles or message["role"] in roles]


def _number(word: str) -> str:
    whole, _, fraction = word.replace(",", "").partition(".")
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


@lru_cache(maxsize=1 << 18)
def _code(word: str) -> int:
    import xxhash

    return xxhash.xxh3_64_intdigest(word.encode())


def _coded(tokens: Words) -> np.ndarray:
    return np.fromiter(map(_code, tokens), np.uint64, len(tokens))


def _hashed(coded: np.ndarray, size: int) -> np.ndarray:
    """A 64-bit polynomial hash of each run of `size` words."""
    runs = max(0, len(coded) - size + 1)
    mixed = np.zeros(runs, np.uint64)
    for place in range(size if runs else 0):
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + coded[place : place + runs]
    return mixed
