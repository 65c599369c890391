"""The journal of judgements, a file for each judge (by id): a line for each pair that was paid for, without texts."""

from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager

import msgspec

from pipeline.core import layout
from pipeline.core.journal import Journal, JournalEntry, forget, latest, open_journal, read
from pipeline.core.removal import Removal
from pipeline.core.storage import Store, digest_json
from pipeline.rewards.findings import JudgeSpending
from pipeline.serving.inference import Messages


class JudgementLine(JournalEntry):
    """A pair in both orders (of the candidate: 1 better, 0 worse, 0.5 neither), or the reason why there is no
    preference. Its owner is the item; without one the line holds what an admission, or a pair that was erased, cost."""

    iteration: str
    candidate_first: float | None = None
    champion_first: float | None = None
    reason: str = ""
    tokens: int = 0
    usd: float = 0.0


def pair_key(judge: str, item: str, messages: Messages, champion: str, candidate: str) -> str:
    """Identity of a judgement: who judges (by id) which two texts. Which models wrote them is no part of it; the item
    is, whose id holds something random where it is a person's."""
    return digest_json([judge, item, messages, champion, candidate])


class JudgementJournal:
    """The judgements of one judge, by key, and the file that keeps them."""

    def __init__(self, journal: Journal[JudgementLine]) -> None:
        self._journal = journal
        self.lines = journal.read()
        self.judged = {key: line for key, line in latest(self.lines).items() if line.owner and not line.again}

    def add(self, line: JudgementLine) -> None:
        """Keep a line. Raises OSError where the disk does not take it whole; the pair is then judged again."""
        self._journal.add(line)
        if line.owner and not line.again:
            self.judged[line.key] = line

    def spent(self, iteration: str) -> JudgeSpending:
        """What this iteration had paid when the journal was opened."""
        return _spent(self.lines, iteration)


@contextmanager
def open_judgements(store: Store, judge: str) -> Generator[JudgementJournal]:
    """The journal of a judge (by id), held until the block ends; waits for who holds it now."""
    with open_journal(store.path(layout.judgements(judge)), JudgementLine) as journal:
        yield JudgementJournal(journal)


def spent_on(store: Store, iteration: str) -> JudgeSpending:
    """What all judges took for this iteration's pairs. Raises ValueError for a file that holds other things."""
    paths = sorted(store.path(layout.JUDGEMENTS).glob("*/*.jsonl"))
    return _spent([line for path in paths for line in read(path, JudgementLine)], iteration)


def _spent(lines: list[JudgementLine], iteration: str) -> JudgeSpending:
    paid = [line for line in lines if line.iteration == iteration]
    return JudgeSpending(tokens=sum(line.tokens for line in paid), usd=sum(line.usd for line in paid))


def removals(store: Store, items: Collection[str]) -> Iterator[Removal]:
    """The judgements of these items' pairs: of each line what it cost stays."""
    return forget(store, store.path(layout.JUDGEMENTS).glob("*/*.jsonl"), items, _cost)


def _cost(text: bytes) -> bytes:
    line = msgspec.json.decode(text, type=JudgementLine)
    left = JudgementLine(key="", iteration=line.iteration, tokens=line.tokens, usd=line.usd)
    return msgspec.json.encode(left) + b"\n"
