"""Reader of preferences and demonstrations that exist already: a row gives a trace for each of its answers, with the
reward that the row says. Each file is a part."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time
from typing import Any

import msgspec

from pipeline.recipe.sources import DEMONSTRATED, ImportSource
from pipeline.traces.batch import REFERENCE_KEY
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.fields import metadata_of, put, said
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.protocol import Digest, SourcePart
from pipeline.traces.sources.rows import FINE
from pipeline.traces.sources.shapes import at, decoded, first, last_key, list_of
from pipeline.traces.sources.tables import FORMATS, records

REWARD_KEY = "imported_reward"
"""Metadata key of the reward of an imported answer, in [0, 1]."""
UNDECIDED = "a tie, or nothing says how good its answers are"
COUNTED = FINE | {"submitted"}
"""Words of the status of a vote that counts."""
TRUTHS = {"true": 1.0, "false": 0.0}
Row = Mapping[str, Any]
GivenAnswer = tuple[Any, float | None]
"""A logged answer and its reward; None: the row does not say."""


class ImportedFiles:
    def __init__(self, section: ImportSource, prefix: str) -> None:
        """`prefix`: what the names of its parts begin with in the whole source; the ids of rows have it."""
        self.label = section.uri
        self._section, self._prefix, self._files = section, prefix, Files(section.uri)
        self._paths, self._meaning = section.mapping, section.meaning
        self._columns = [path for paths in self._paths.values() for path in paths]
        marks = "|".join(map(re.escape, self._meaning.speakers))
        self._mark = re.compile(f"({marks})") if marks else None

    def parts(self) -> list[SourcePart]:
        parts = self._files.parts(suffixes=FORMATS)
        if not parts:
            raise ValueError(f"{self.label} holds no {', '.join(FORMATS)}. Point the import's uri to the files.")
        return [part._replace(version=f"{part.version}-{self._section.identity}") for part in parts]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        digest.update(self._section.identity.encode())  # the same bytes under other paths are other rows
        day = self._section.day.isoformat()
        stored = part._replace(version=part.version.rpartition("-")[0])
        for batch in records(self._files, stored, digest, self._columns):
            rows = Rows(rejected=list(batch.rejected))
            for line, row in batch.records:
                for each in self._traces(row, f"{self._prefix}{part.name}:{line}", line):
                    put(rows, each)
            rows.rejected = [msgspec.structs.replace(each, day=day) for each in rows.rejected]
            yield rows

    def _value(self, row: Row, field: str) -> Any:
        return first(row, self._paths.get(field, ()))

    def _traces(self, row: Row, id: str, line: int) -> list[Trace | Rejection]:
        """Of each answer, or the rejection of the row. Raises ValueError for a rating that is not on the scale."""
        try:
            answers, asked = self._answers(row, id), self._asked(row)
            chats = [self._chats(asked, answer) for answer, _ in answers]
        except (msgspec.ValidationError, RecursionError, TypeError) as error:
            return [refusal(line, error)]
        if all(reward is None for _, reward in answers):
            return [Rejection(line, Reason.NO_PREFERENCE, detail=UNDECIDED)]
        readable = [pair for pair in chats if not any(each.unreadable for each in pair)]
        prompts = [chat.prompt(*pair) for pair in readable]
        if any(prompt != prompts[0] for prompt in prompts):
            return [Rejection(line, Reason.UNREADABLE, detail="its answers are to different prompts")]
        if len({(chat.completion(each), chat.tool_calls(each)) for _, each in readable}) == 1 < len(readable):
            return [Rejection(line, Reason.NO_PREFERENCE, detail="its answers are the same")]
        ids = [f"{id}#{n}" for n in range(len(answers))] if len(answers) > 1 else [id]
        each_trace = zip(ids, chats, answers, strict=True)
        return [self._trace(row, line, name, pair, reward) for name, pair, (_, reward) in each_trace]

    def _trace(
        self, row: Row, line: int, id: str, chats: tuple[chat.Chat, chat.Chat], reward: float | None
    ) -> Trace | Rejection:
        asked, answered = chats
        if reward is None:
            return Rejection(line, Reason.NO_PREFERENCE, detail="an answer without a rating")
        if not chat.has_answer(answered) and not answered.unreadable:
            return Rejection(line, Reason.NO_CONTENT, detail="no answer")
        user, reference = self._value(row, "user"), self._value(row, "reference")
        kept: dict[str, Any] = {} if reference is None else {REFERENCE_KEY: reference}
        for path in self._paths.get("metadata", ()):
            value = decoded(at(row, path))
            kept |= metadata_of(value) if isinstance(value, dict) else {last_key(path): value}
        kept |= {"licence": self._section.licence, REWARD_KEY: reward}
        moment, owner = datetime.combine(self._section.day, time(), UTC), None if user is None else str(user)
        metadata = json.dumps(kept, ensure_ascii=False, default=str)
        trace = Trace(id, id, moment, self._section.model, owner, None, [], "", line, metadata=metadata)
        return said(trace, asked, answered)

    def _asked(self, row: Row) -> chat.Chat:
        prompt, more = self._value(row, "prompt"), self._value(row, "input")
        if isinstance(prompt, str) and isinstance(more, str):
            prompt = f"{prompt}\n\n{more}"
        return chat.request(self._turns(prompt), self._value(row, "system"), self._value(row, "tools"))

    def _chats(self, asked: chat.Chat, answer: Any) -> tuple[chat.Chat, chat.Chat]:
        """The prompt and the answer; an answer that is a whole conversation brings its prompt."""
        answered = chat.of_output(self._turns(answer))
        if not any(message["role"] == "user" for message in answered.messages):
            return asked, answered
        *before, last = answered.messages
        ruled = any(message["role"] == "system" for message in before)
        rules = [] if ruled else [message for message in asked.messages if message["role"] == "system"]
        replace = msgspec.structs.replace
        return replace(asked, messages=[*rules, *before], unreadable=None), replace(answered, messages=[last])

    def _turns(self, value: Any) -> Any:
        """A text that is a whole conversation, as messages."""
        if self._mark is None or not isinstance(value, str) or not self._mark.search(value):
            return value
        lead, *rest = self._mark.split(value)
        turns = [
            ("user", lead),
            *((self._meaning.speakers[mark], text) for mark, text in zip(rest[::2], rest[1::2], strict=True)),
        ]
        return [{"role": role, "content": text.strip()} for role, text in turns if text.strip()]

    def _answers(self, row: Row, id: str) -> list[GivenAnswer]:
        """In their order; none where the row takes no side."""
        ratings = [each for path in self._paths.get("rating", ()) for each in _elements(at(row, path))]
        if self._section.model == DEMONSTRATED:
            weights = [weight for each in ratings if (weight := self._reward(each, id)) is not None]
            return [(self._value(row, "answer"), 1.0)] if all(weight == 1 for weight in weights) else []
        if "answers" not in self._paths:
            known = [number for each in ratings if (number := _number(each)) is not None]
            tie = len(known) == 2 and known[0] <= known[1]
            return [] if tie else [(self._value(row, "chosen"), 1.0), (self._value(row, "rejected"), 0.0)]
        inside = self._paths.get("answer", ())
        values = [each for path in self._paths["answers"] for each in _elements(at(row, path), objects=bool(inside))]
        if inside:
            ratings = [self._value(each, "rating") for each in values]
            values = [first(each, inside) for each in values]
        if "preferred" in self._paths:
            won = self._won(row)
            return [] if won is None else [(each, float(n == won)) for n, each in enumerate(values)]
        rewards = [self._reward(each, id) for each in ratings]
        return list(zip(values, rewards, strict=True)) if len(rewards) == len(values) else []

    def _reward(self, rating: Any, id: str) -> float | None:
        number = _number(rating)
        worst, best = self._meaning.scale or (0.0, 1.0)
        reward = None if number is None else (number - worst) / (best - worst)
        if reward is not None and not 0 <= reward <= 1:
            scale = f"the scale from {worst:g} to {best:g}. Give the import the scale of its ratings."
            raise ValueError(f"{id} has the rating {number:g}, which is not on {scale}")
        return reward

    def _won(self, row: Row) -> int | None:
        """The place of the answer that has the most votes; None without one, or for a tie."""
        votes = list_of(decoded(self._value(row, "votes"))) if "votes" in self._paths else [row]
        sides = Counter(side for vote in votes if (side := self._side(vote)) is not None)
        most = [side for side, count in sides.items() if count == max(sides.values())]
        return most[0] if len(most) == 1 else None

    def _side(self, vote: Row) -> int | None:
        status, value = self._value(vote, "status"), self._value(vote, "preferred")
        if self._value(vote, "error") or (status is not None and str(status).lower() not in COUNTED):
            return None
        number = _number(value) if "negative" in self._meaning.sides else None
        if number is not None:
            value = "negative" if number < 0 else "positive" if number > 0 else None
        return self._meaning.sides.get(value if isinstance(value, str) else json.dumps(value))


def _elements(value: Any, objects: bool = False) -> list[Any]:
    """Those of a list of texts or numbers, or of `objects`; of messages, and of anything else, the value itself."""
    items = list_of(decoded(value) if objects else value)
    return items if items and (objects or not any(isinstance(each, dict) for each in items)) else [value]


def _number(value: Any) -> float | None:
    """A rating; true is 1. None for what is no number."""
    try:
        number = float(TRUTHS.get(value.strip().lower(), value) if isinstance(value, str) else value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
