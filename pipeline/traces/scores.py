"""What a score says of an answer: a value from 0, worst, to 1, best, or nothing. The recipe declares it by name; else
only people's thumbs count (0 or 1, a word of UP or DOWN, under a name of THUMBS), never texts, programs or judges."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from pipeline.recipe.traces import ScoreMeaning
from pipeline.traces.pii import Unmaskable, mask
from pipeline.traces.rows import Score

UP = frozenset({"true", "1", "up", "thumbs_up", "positive", "good", "yes", "correct"})
DOWN = frozenset({"false", "0", "down", "thumbs_down", "negative", "bad", "no", "incorrect"})
THUMBS = frozenset(
    {"thumb", "thumbs", "user_thumb", "user_thumbs", "feedback", "user_feedback", "userfeedback", "like"}
)
"""Names, in lower case and with `_` between words, under which people's thumbs are known."""
RETRY = "retry"
"""A user asked again, which is no praise."""
JUDGES = frozenset({"EVAL", "LLM_JUDGE", "AI_JUDGE"})
PROGRAMS = JUDGES | {"CODE"}
USER = "user"
"""Source of the gateway's scores of users, from 0 to 1."""
LEAST_SHARE = 0.05
"""Share of all scores from which an undeclared name is reported."""
SHOWN = 5
"""Values of a name that are shown to a person."""


class Meant(NamedTuple):
    """`outside`: the score is not on its name's scale. `declared`: the name is known."""

    value: float | None = None
    outside: bool = False
    declared: bool = True


class ScoreCount(NamedTuple):
    name: str
    source: str
    kind: str
    total: int = 0
    feedback: int = 0
    outside: int = 0
    declared: bool = False
    values: tuple[str, ...] = ()
    """The first few."""

    def line(self) -> str:
        given = ", ".join(map(_shown, self.values)) or "without a value"
        taken = f"{self.feedback:,} as feedback" if self.feedback else "none as feedback"
        return f"{self.total:,} scores {_shown(self.name)} ({self.source}, {self.kind}: {given}), {taken}"


class Meanings:
    def __init__(self, declared: Iterable[ScoreMeaning]) -> None:
        self._declared = {each.name: each for each in declared}

    def of(self, score: Score) -> Meant:
        meaning = self._declared.get(score.name)
        if meaning is not None:
            return _declared(score, meaning)
        name = re.sub(r"[^a-z0-9]+", "_", score.name.lower())
        if name not in THUMBS and name != RETRY:
            return Meant(declared=False)
        if score.source in PROGRAMS:
            return Meant()
        if score.kind == "CATEGORICAL":
            return Meant(_thumb(score))
        if score.kind not in ("NUMERIC", "BOOLEAN") or score.value is None:
            return Meant()
        fits = score.value in (0, 1) or (score.source == USER and 0 <= score.value <= 1)
        value = 1 - score.value if name == RETRY else score.value
        return Meant(value) if fits else Meant(outside=True)


class ScoreCounts:
    def __init__(self, counts: Iterable[ScoreCount] = ()) -> None:
        self._counts: dict[tuple[str, str, str], ScoreCount] = {}
        for each in counts:
            self._merge(each)

    def add(self, score: Score, meant: Meant) -> None:
        number = "" if score.value is None else f"{score.value:g}"
        value = (score.word or "") if score.kind == "CATEGORICAL" else number
        key, counts = (score.name, score.source, score.kind), (1, int(meant.value is not None), int(meant.outside))
        self._merge(ScoreCount(*key, *counts, meant.declared, (value,) if value else ()))

    def all(self) -> list[ScoreCount]:
        """The most frequent first."""
        return sorted(self._counts.values(), key=lambda each: (-each.total, each[:3]))

    def undeclared(self) -> list[ScoreCount]:
        """Names that the recipe does not declare, and that are many."""
        most = LEAST_SHARE * sum(each.total for each in self._counts.values())
        return [each for each in self.all() if not each.declared and each.total >= most]

    def outside(self) -> str:
        """Which scores are not on their scale: the others of that name may mean something else, too. Or ""."""
        wrong = next((each for each in self.all() if each.outside), None)
        if wrong is None:
            return ""
        return (
            f"{wrong.outside:,} of {wrong.line()}, are outside their scale. Say in traces.scores which scale they "
            "have and which end is good, or ignore them (use: ignore)."
        )

    def _merge(self, new: ScoreCount) -> None:
        old = self._counts.get(new[:3], ScoreCount(*new[:3]))
        self._counts[new[:3]] = new._replace(
            total=old.total + new.total,
            feedback=old.feedback + new.feedback,
            outside=old.outside + new.outside,
            values=tuple(dict.fromkeys((*old.values, *new.values)))[:SHOWN],
        )


def _declared(score: Score, meaning: ScoreMeaning) -> Meant:
    if meaning.use == "ignore" or score.source in JUDGES or score.kind not in ("NUMERIC", "BOOLEAN", "CATEGORICAL"):
        return Meant()
    place = _place(score, meaning)
    if place is None:
        return Meant(outside=score.value is not None or score.word is not None)
    return Meant(place if meaning.good == "high" else 1 - place)


def _place(score: Score, meaning: ScoreMeaning) -> float | None:
    """Where on the scale it stands, from 0, lowest, to 1; None: not on it."""
    words = [each.strip().casefold() for each in meaning.scale if isinstance(each, str)]
    if words:
        word = (score.word or "").strip().casefold()
        return words.index(word) / (len(words) - 1) if word in words else None
    low, high = (float(each) for each in meaning.scale)
    value = _thumb(score) if score.kind == "CATEGORICAL" and (low, high) == (0, 1) else score.value
    if value is None or (score.kind == "CATEGORICAL" and (low, high) != (0, 1)) or not low <= value <= high:
        return None
    return (value - low) / (high - low)


def _thumb(score: Score) -> float | None:
    word = (score.word or "").strip().lower()
    return 1.0 if word in UP else 0.0 if word in DOWN else None


def _shown(text: str) -> str:
    try:
        return mask(text[:60])
    except Unmaskable:
        return "[BINARY]"
