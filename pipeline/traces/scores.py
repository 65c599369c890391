"""What a score says of an answer: a value from 0, worst, to 1, best, or nothing. The recipe declares it by name; else
only people's thumbs count (0 or 1, a word of UP or DOWN, under a name of THUMBS), never texts, programs or judges.
Scores are masked, staged in a file for each part and joined to the calls of a day."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.recipe.traces import ScoreMeaning
from pipeline.traces.pii import Unmaskable, mask
from pipeline.traces.pii.columns import mask_column
from pipeline.traces.rows import Score
from pipeline.traces.sources.shapes import names

UP, DOWN, THUMBS = map(names, ("up", "down", "thumbs"))
RETRY = "retry"
"""A user asked again, which is no praise."""
JUDGES = frozenset({"EVAL", "LLM_JUDGE", "AI_JUDGE"})
PROGRAMS = JUDGES | {"CODE"}
USER = "user"
"""Source of the gateway's scores of users, from 0 to 1."""
LEAST_SHARE = 0.05
"""Share of all scores from which an undeclared name is reported."""


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
            values=tuple(dict.fromkeys((*old.values, *new.values)))[:5],
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


SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "trace_id", "observation_id", "name")),
        ("value", pa.float64()),
        ("source", pa.string()),
        ("updated_at", pa.timestamp("us", tz="UTC")),
        ("part", pa.int32()),
    ]
)


def scores_file(folder: Path, place: int) -> Path:
    return folder / f"{place}.scores.parquet"


class StagedScores:
    """Writes the file of a part that has scores, with what they mean; `counts` are of them."""

    def __init__(self, path: Path, part: int, meanings: Meanings) -> None:
        self._path, self._part, self._meanings = path, part, meanings
        self._writer: pq.ParquetWriter | None = None
        self.counts = ScoreCounts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, scores: Sequence[Score]) -> None:
        if not scores:
            return
        meant = [self._meanings.of(score) for score in scores]
        for score, each in zip(scores, meant, strict=True):
            self.counts.add(score, each)
        columns = {name: [getattr(score, name) for score in scores] for name in SCHEMA.names if name != "part"}
        columns |= {"value": [each.value for each in meant], "part": [self._part] * len(scores)}
        arrays = {field.name: pa.array(columns[field.name], field.type) for field in SCHEMA}
        arrays |= {name: mask_column(arrays[name])[0] for name in ("name", "source")}
        self._writer = self._writer or pq.ParquetWriter(self._path, SCHEMA)
        self._writer.write_table(pa.table(arrays, schema=SCHEMA))


# The newest export of each score on the calls that were admitted.
FEEDBACK = """
create table feedback as
with newest as (
    select s.* from read_parquet({scores}) s semi join admitted a on s.trace_id = a.trace_id
    qualify row_number() over (partition by s.id order by s.updated_at desc nulls last, s.part desc) = 1
),
answers as (
    select trace_id, observation_id, timestamp from judged where observation_id is not null
    and (outcome is null or outcome not in ('superseded', 'intermediate', 'helper'))
),
about as (
    select id, observation_id from newest where observation_id is not null
    union all (
        select n.id, a.observation_id from newest n join answers a using (trace_id) where n.observation_id is null
        qualify row_number() over (
            partition by n.id
            order by coalesce(a.timestamp <= n.updated_at, true) desc, a.timestamp desc, a.observation_id
        ) = 1
    )
)
select a.part, a.row,
       list(struct_pack(name := n.name, value := n.value, source := n.source) order by n.id) as feedback,
       avg(n.value) as mean, count(n.value) as count
from newest n join about using (id)
join admitted a on n.trace_id = a.trace_id and about.observation_id = a.observation_id
group by all
"""
