"""The journal of answers, one file for each model and protocol (by digest): who asks the same is not charged again. An
error is not kept."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager

from pipeline.core import layout
from pipeline.core.journal import Journal, JournalEntry, forget, latest
from pipeline.core.journal import open_journal as open_entries
from pipeline.core.removal import Removal
from pipeline.core.storage import Record, Store, digest_json
from pipeline.serving.inference import Answer, Decoding, Messages, Sampling


class AnswerProtocol(Record):
    """What decides an answer apart from weights, messages and the sample's number; its digest names the journal."""

    decoding: Decoding
    temperature: float
    max_completion_tokens: int
    seed: int

    @classmethod
    def under(cls, decoding: Decoding, plan: Sampling) -> AnswerProtocol:
        most = plan.max_completion_tokens
        return cls(decoding=decoding, temperature=plan.temperature, max_completion_tokens=most, seed=plan.seed)

    def digest(self) -> str:
        return digest_json(self)


class AnswerLine(JournalEntry):
    """An answer. Its owner is the item that it is about; its digest is that of the protocol."""

    answer: Answer


def answer_key(model: str, protocol: str, item: str, messages: Messages, sample: int) -> str:
    """Identity of one answer. `model`, `protocol`: digests. Other items of the suite are no part of it."""
    return digest_json([model, protocol, item, messages, sample])


class AnswerJournal:
    """The answers of one model under one protocol, by key, and the file that keeps them."""

    def __init__(self, journal: Journal[AnswerLine]) -> None:
        self._journal = journal
        self.answers = {key: line.answer for key, line in latest(journal.read()).items()}

    def add(self, item: str, answer: Answer) -> None:
        """Keep an answer. Raises OSError where the disk does not take it whole; it is then asked again."""
        self._journal.add(AnswerLine(key=answer.key, owner=item, answer=answer))
        self.answers[answer.key] = answer


@contextmanager
def open_journal(
    store: Store, model: str, protocol: AnswerProtocol, folder: str = layout.ANSWERS
) -> Generator[AnswerJournal]:
    """The journal of a model (by digest) in `folder`, held until the block ends; waits for who holds it now."""
    digest = protocol.digest()
    path = store.path(layout.answers(model, digest, folder))
    with open_entries(path, AnswerLine, digest) as journal:
        description = path.with_suffix(".json")
        if not description.exists():  # for people: the file's name alone says nothing
            description.write_text(json.dumps(protocol.model_dump(mode="json"), indent=2) + "\n")
        yield AnswerJournal(journal)


def removals(store: Store, items: Collection[str], folder: str = layout.ANSWERS) -> Iterator[Removal]:
    """The answers to these items in every journal of `folder`."""
    return forget(store, store.path(folder).glob("*/*.jsonl"), items)
