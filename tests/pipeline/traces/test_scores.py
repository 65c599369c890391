"""What scores mean: declared, or a plain thumb of people."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.core.storage import Store
from pipeline.recipe.traces import ScoreMeaning
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from pipeline.traces.rows import Score
from pipeline.traces.scores import Meanings, Meant

from .conftest import Run, observation, score, write

STARS: dict[str, Any] = {"name": "n", "from": "user", "scale": [1, 5]}
NOTHING = Meant(declared=False)


def meaning(**fields: Any) -> ScoreMeaning:
    return ScoreMeaning.model_validate(fields)


def meant(given: Any, *declared: dict[str, Any], name: str = "n", source: str = "API", kind: str = "") -> Meant:
    kind = kind or ("CATEGORICAL" if isinstance(given, str) else "NUMERIC")
    value, word = (None, given) if isinstance(given, str) else (given, None)
    row = Score("s", "t", None, name, value, source, None, kind, word)
    return Meanings([meaning(**each) for each in declared]).of(row)


@pytest.mark.parametrize(
    ("name", "source", "kind", "given", "expected"),
    [
        ("thumb", "API", "NUMERIC", 1, Meant(1.0)),
        ("User-Feedback", "ANNOTATION", "BOOLEAN", 0, Meant(0.0)),
        ("thumb", "HUMAN", "CATEGORICAL", "Thumbs_Up", Meant(1.0)),
        ("thumb", "API", "CATEGORICAL", "blue", Meant()),
        ("retry", "API", "BOOLEAN", 1, Meant(0.0)),
        ("thumb", "user", "NUMERIC", 0.25, Meant(0.25)),
        ("thumb", "API", "NUMERIC", 0.25, Meant(outside=True)),
        ("thumb", "API", "NUMERIC", -1, Meant(outside=True)),
        ("thumb", "API", "NUMERIC", None, Meant()),
        ("thumb", "API", "TEXT", 0, Meant()),
        ("thumb", "API", "CORRECTION", 0, Meant()),
        *(("thumb", source, "BOOLEAN", 1, Meant()) for source in ("EVAL", "CODE", "LLM_JUDGE", "AI_JUDGE")),
        ("negative_user_feedback", "API", "BOOLEAN", 1, NOTHING),
        ("stars", "API", "NUMERIC", 1, NOTHING),
        ("toxicity", "API", "NUMERIC", 0.97, NOTHING),
        ("is_short", "CODE", "BOOLEAN", 1, NOTHING),
        ("comment", "API", "TEXT", 0, NOTHING),
    ],
)
def test_without_a_declaration_only_plain_thumbs_of_people_count(
    name: str, source: str, kind: str, given: Any, expected: Meant
) -> None:
    assert meant(given, name=name, source=source, kind=kind) == expected


@pytest.mark.parametrize(
    ("declared", "given", "more", "expected"),
    [
        (STARS, 1, {}, Meant(0.0)),
        (STARS, 4, {}, Meant(0.75)),
        (STARS, 6, {}, Meant(outside=True)),
        ({**STARS, "good": "low"}, 4, {}, Meant(0.25)),
        ({**STARS, "use": "ignore"}, 9, {}, Meant()),
        ({**STARS, "scale": [-1, 1]}, -1, {}, Meant(0.0)),
        ({"name": "n", "from": "expert", "good": "low"}, 1, {"kind": "BOOLEAN"}, Meant(0.0)),
        ({"name": "n", "from": "user"}, "thumbs_down", {}, Meant(0.0)),
        ({"name": "n", "from": "user"}, "blue", {}, Meant(outside=True)),
        ({**STARS, "scale": ["bad", "fair", "good"]}, "Fair ", {}, Meant(0.5)),
        ({**STARS, "scale": ["bad", "fair", "good"]}, "great", {}, Meant(outside=True)),
        (STARS, 4, {"source": "CODE"}, Meant(0.75)),
        (STARS, 4, {"source": "LLM_JUDGE"}, Meant()),
        (STARS, 0, {"kind": "TEXT"}, Meant()),
        (STARS, None, {}, Meant()),
        ({"name": "n", "from": "program", "use": "ignore"}, 1, {}, Meant()),
    ],
)
def test_a_declared_score_goes_by_its_scale(
    declared: dict[str, Any], given: Any, more: dict[str, str], expected: Meant
) -> None:
    assert meant(given, declared, **more) == expected


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"scale": [5, 1]}, "lowest and the highest"),
        ({"scale": [1, 2, 3]}, "lowest and the highest"),
        ({"scale": [1, "good"]}, "words in quotes"),
        ({"scale": ["good", "Good"]}, "each word once"),
        ({"from": "program"}, "no feedback of people"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        meaning(**{"name": "n", "from": "user", **fields})


def test_the_stage_refuses_a_scale_that_is_not_declared(run: Run, store: Store, export: Path) -> None:
    write(export, "observations_v2/2026-01-05.jsonl", map(observation, range(5)))
    rows = [score(n, n, n + 1, name="stars") for n in range(5)]
    write(export, "scores/2026-01-05.jsonl", [*rows, score(8, 0, 1), score(9, 1, 0, data_type="TEXT", name="note")])

    def means(**settings: Any) -> list[float | None]:
        dataset = run(**settings).iteration.dataset
        return read(store, local_lake(store), dataset, ["feedback_mean"])["feedback_mean"].to_pylist()

    assert means() == [1.0, None, None, None, None]
    declared = {"name": "stars", "from": "user", "scale": [1, 5]}
    assert means(scores=(meaning(**declared),)) == [0.5, 0.25, 0.5, 0.75, 1.0]
    with pytest.raises(
        ValueError, match=r"3 of 5 scores stars \(API, NUMERIC: 1, 2, 3, 4, 5\).* outside their scale.*traces\.scores"
    ):
        run(scores=(meaning(name="stars", **{"from": "user", "scale": [1, 2]}),))
