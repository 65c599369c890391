"""The tables of selection: what is built from a labelled set, what is left out of it, and that TRL reads it."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, ModelRef, Store, digest_file
from pipeline.recipe import Selection
from pipeline.rewards.records import LABELS
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.selection.draw import SAMPLES
from pipeline.selection.pairing import LabelledRow
from pipeline.selection.preferences import PreferenceDataset, ScoredSamples, build
from pipeline.selection.trainable import HeldApart
from tests.contexts import context_of

from .labelled import row

SETTINGS = Selection(held_out_share=0.0, max_principal_share=1.0)


class Place:
    """A store with a label table, and the stage run over it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def build(
        self,
        rows: list[LabelledRow],
        held_out: dict[str, list[str]] | None = None,
        gone: tuple[str, ...] = (),
        frozen: tuple[str, ...] = (),
        fresh: tuple[LabelledRow, ...] = (),
        reward_model: RewardModelReport | None = None,
        sections: Mapping[str, Any] = MappingProxyType({}),
        **changes: Any,
    ) -> PreferenceDataset:
        path = self.root / "labels" / "part-0.parquet"
        path.parent.mkdir(exist_ok=True)
        full = [{name: r._asdict().get(name) for name in LABELS.names} for r in rows]
        pq.write_table(pa.Table.from_pylist(full, schema=LABELS), path)
        labels = DatasetRef(uri=str(path.parent), rows=len(rows), digest=digest_file(path))
        allowed = {(r.trace_id, r.observation_id) for r in rows if r.trace_id not in gone}
        return build(
            context_of(
                Store(self.root),
                identify(0, "m", ModelRef(uri="", digest="m"), labels, "r"),
                selection=SETTINGS.model_copy(update=changes),
                **sections,
            ),
            labels,
            HeldApart(held_out or {}, frozen),
            lambda: allowed,
            fresh=ScoredSamples(self.drawn(fresh), reward_model),
        )

    def drawn(self, rows: tuple[LabelledRow, ...]) -> DatasetRef | None:
        """The rows as the stage `samples` publishes them."""
        if not rows:
            return None
        path = self.root / "samples" / "part-0.parquet"
        path.parent.mkdir(exist_ok=True)
        full = [{name: r._asdict().get(name) for name in SAMPLES.names} for r in rows]
        pq.write_table(pa.Table.from_pylist(full, schema=SAMPLES), path)
        return DatasetRef(uri=str(path.parent), rows=len(rows), digest=digest_file(path))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def read(ref: DatasetRef) -> list[dict[str, Any]]:
    rows = pq.read_table(ref.uri).to_pylist()
    assert (len(rows), digest_file(Path(ref.uri))) == (ref.rows, ref.digest)
    return rows


def asked(ref: DatasetRef) -> list[str]:
    return [each["prompt"][-1]["content"] for each in read(ref)]


def answers(name: str, *correct: float | None, **fields: Any) -> list[LabelledRow]:
    """A prompt's rows, by how right each of its answers was."""
    return [row(f"{name}{i}", value, prompt=name, correct=value, **fields) for i, value in enumerate(correct)]


WORDS = ("sun", "moon", "rain", "wind", "snow", "hail", "fog", "frost")
"""Prompts of one word each: no two of them are near-identical."""
FROZEN = "how many apples does the old farmer have"


def test_the_curriculum(place: Place) -> None:
    rows = [
        *answers("solved", 1.0, 1.0, 1.0),
        *answers("unsolved", 0.0, 0.0, 0.0, None),
        *answers("seldom", 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        *answers("even", 1.0, 0.0, 1.0, 0.0),
        *answers("young", 1.0, 1.0),
        *answers("new", None),
        *answers("ambiguous", 1.0, 0.0),
        *answers("open", 1.0, 0.0, reference=None, verifier=None, profile="judged"),
    ]
    rows[-4] = rows[-4]._replace(reference="2")
    dataset = place.build(rows)
    found = read(dataset.prompts)
    shown = [(r["prompt"][0]["content"], r["attempts"], r["pass_rate"], r["frontier"]) for r in found]
    assert shown == [("even", 4, 0.5, True), ("seldom", 7, 1 / 7, True), ("young", 2, 1.0, False)]
    assert {(r["reference"], r["verifier"]) for r in found} == {("1", "number")}
    assert dataset.evidence.frontier_prompts == dataset.prompts.rows


def test_consent_is_checked_again(place: Place) -> None:
    rows = [each for name in WORDS for each in answers(name, 1.0, 0.0)]
    rows[0] = rows[0]._replace(consent=False)
    rows[2] = rows[2]._replace(consent=None)  # type: ignore[arg-type]
    dataset = place.build(rows, gone=("rain0",))
    assert dataset.without_consent == 3
    assert set(asked(dataset.pairs)) == set(WORDS[3:])
    used = {trace for prompt in read(dataset.prompts) for trace in prompt["trace_ids"]}
    assert not used & {"sun0", "moon0", "rain0"}


def test_what_is_near_a_frozen_prompt_is_set_aside(place: Place) -> None:
    near = "how many apples does the old farmer now have"
    longer = f"You are asked by a shop: {' '.join(FROZEN.split())}, and by {' '.join(WORDS)}, {' and '.join(WORDS)}"
    other = FROZEN.replace("apples", "12 apples")
    rows = [each for name in (FROZEN, near, longer, other, "sun") for each in answers(name, 1.0, 0.0)]
    frozen = (json.dumps([{"role": "user", "content": FROZEN}]),)
    dataset = place.build(rows, frozen=frozen)
    assert (dataset.frozen, dataset.contamination.hits) == (6, 0)
    assert set(asked(dataset.prompts)) == {other, "sun"}


def test_evaluation_items_are_dropped_before_anything_is_built(place: Place) -> None:
    rows = [each for n in range(150) for each in answers(f"What would {n} be in words?", 1.0, 0.0)]
    dataset = place.build(rows, {"suite": ["what would 7 be, in words"]})
    assert (dataset.contamination.hits, dataset.contamination.rows) == (2, 300)
    assert (dataset.pairs.rows, dataset.prompts.rows) == (149, 149)
    assert dataset.evidence.traces == 298
    assert "What would 7 be in words?" not in {*asked(dataset.pairs), *asked(dataset.prompts)}


def test_a_broken_split_is_an_error_and_publishes_nothing(place: Place) -> None:
    rows = [each for n in range(10) for each in answers(f"What would {n} be in words?", 1.0)]
    with pytest.raises(ValueError, match=r"1 of 10 traces hold items .*limit 1%.*item 0 of suite \(exact\).*Change"):
        place.build(rows, {"suite": ["What would 7 be in words?"]})
    assert not list(place.root.rglob("preference_dataset*"))


def test_clusters_are_wholly_held_out_or_wholly_trained_on(place: Place) -> None:
    rows = [
        each
        for n in range(200)
        for polite in ("", "please ")
        for each in answers(f"{polite}what would the number {n} be in words", 1.0, 0.0, 0.0)
    ]
    dataset = place.build(rows, held_out_share=0.2)
    trained, hidden = ({r["cluster"] for r in read(ref)} for ref in (dataset.prompts, dataset.held_out_prompts))
    assert not trained & hidden
    assert len(trained) + len(hidden) == 200
    assert 50 < len(hidden) < 95, "a cluster of two has two chances of one in five"
    assert {r["cluster"] for r in read(dataset.pairs)} == trained
    assert dataset.evidence.traces == 3 * 2 * len(trained)


def test_building_again_changes_nothing(place: Place) -> None:
    rows = [each for name in WORDS for each in answers(name, 1.0, 0.0)]
    first = place.build(rows, held_out_share=0.3)
    assert place.build(rows, {"other": ["something else entirely"]}, gone=("sun0",)) == first
    again = place.build(list(reversed(rows)), held_out_share=0.3)
    assert again.iteration != first.iteration, "another order of the file is another file"
    for name in ("pairs", "prompts", "held_out_prompts"):
        assert getattr(again, name).digest == getattr(first, name).digest


@pytest.mark.parametrize(
    "rows", [[], answers("alone", 1.0), answers("unlabelled", None)], ids=["none", "one", "no label"]
)
def test_next_to_nothing_is_a_dataset_too(place: Place, rows: list[LabelledRow]) -> None:
    dataset = place.build(rows, held_out_share=0.9)
    assert dataset.pairs.rows == 0
