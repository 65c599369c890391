"""The journal of judgements, a file for each judge (by id): a line for each pair that was paid for, without texts, so
that no pair is judged twice. One process writes at a time; a torn last line is cut off when the file is opened."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from pipeline.core import layout
from pipeline.core.removal import Removal, opened
from pipeline.core.storage import Record, Store, digest_json
from pipeline.core.unfinished import held, replacing
from pipeline.rewards.findings import JudgeSpending
from pipeline.serving.inference import Messages


class JudgementLine(Record):
    """What was paid for: a pair in both orders (of the candidate: 1 better, 0 worse, 0.5 neither) or the reason why
    there is no preference; without an item what the judge's admission, or a pair that was erased, has cost."""

    key: str
    iteration: str
    item: str = ""
    candidate_first: float | None = None
    champion_first: float | None = None
    reason: str = ""
    again: bool = False
    """Whether the judge may answer when it is asked again: the line then holds what the attempt has cost."""
    tokens: int = 0
    usd: float = 0.0


def pair_key(judge: str, item: str, messages: Messages, champion: str, candidate: str) -> str:
    """Identity of a judgement: who judges (by id) which two texts. Which models wrote them is no part of it; the item
    is, whose id holds something random where it is a person's."""
    return digest_json([judge, item, messages, champion, candidate])


class JudgementJournal:
    """The judgements of one judge, by key, and the file that keeps them."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self.lines = self._read()
        self.judged = {line.key: line for line in self.lines if line.item and not line.again}

    def add(self, line: JudgementLine) -> None:
        """Keep a line. Raises OSError where the disk does not take it whole; the pair is then judged again."""
        content = (line.model_dump_json() + "\n").encode()
        if os.write(self._descriptor, content) != len(content):
            raise OSError(f"{self._path} took a part of a line alone: make room on its disk and evaluate again.")
        if line.item and not line.again:
            self.judged[line.key] = line

    def spent(self, iteration: str) -> JudgeSpending:
        """What this iteration had paid when the journal was opened."""
        paid = [line for line in self.lines if line.iteration == iteration]
        return JudgeSpending(tokens=sum(line.tokens for line in paid), usd=sum(line.usd for line in paid))

    def _read(self) -> list[JudgementLine]:
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._descriptor, whole)
        lines: list[JudgementLine] = []
        for number, text in enumerate(content[:whole].split(b"\n")[:-1], start=1):
            try:
                lines.append(JudgementLine.model_validate_json(text))
            except ValidationError as error:
                raise ValueError(
                    f"Line {number} of {self._path} is no judgement. Move the file away: what it holds is then judged "
                    "again."
                ) from error
        return lines


@contextmanager
def open_judgements(store: Store, judge: str) -> Generator[JudgementJournal]:
    """The journal of a judge (by id), held until the block ends; waits for who holds it now."""
    path = store.path(layout.judgements(judge))
    path.parent.mkdir(parents=True, exist_ok=True)
    with held(path) as descriptor:
        yield JudgementJournal(path, descriptor)


def spent_on(store: Store, iteration: str) -> JudgeSpending:
    """What all judges took for this iteration's pairs, for a reader: without the lock, and a torn last line is nothing.

    Raises ValueError for a file that holds other things.
    """
    mark = f'"{iteration}"'.encode()
    spending = JudgeSpending()
    for path in sorted(store.path(layout.JUDGEMENTS).glob("*/*.jsonl")):
        content = path.read_bytes()
        for text in content[: content.rfind(b"\n") + 1].splitlines():
            if mark not in text:  # of another iteration
                continue
            line = JudgementLine.model_validate_json(text)
            if line.iteration == iteration:
                spending = JudgeSpending(tokens=spending.tokens + line.tokens, usd=spending.usd + line.usd)
    return spending


def removals(store: Store, items: Collection[str]) -> Iterator[Removal]:
    """The judgements of these items' pairs: of each line what it cost stays."""
    for path in sorted(store.path(layout.JUDGEMENTS).glob("*/*.jsonl")):
        with opened(path) as lines:
            rows = sum(_item_of(line) in items for line in lines)
        if rows:
            yield Removal(str(path.relative_to(store.root)), rows, partial(_erase, path, items))


def _item_of(line: bytes) -> str | None:
    try:
        return JudgementLine.model_validate_json(line).item
    except ValidationError:  # a line that a kill cut off: it holds no text
        return None


def _erase(path: Path, items: Collection[str]) -> None:
    with held(path), opened(path) as lines, replacing(path) as stream:
        stream.writelines(_erased(line) if _item_of(line) in items else line for line in lines)


def _erased(text: bytes) -> bytes:
    line = JudgementLine.model_validate_json(text)
    left = JudgementLine(key="", iteration=line.iteration, tokens=line.tokens, usd=line.usd)
    return left.model_dump_json().encode() + b"\n"
