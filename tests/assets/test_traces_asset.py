"""The traces stage as a user runs it: what starts an iteration after a promotion, and what a wrong source says."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from assets.graph import ASSETS
from assets.records import conclude
from assets.resources import Deployment, records
from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.fold import read_state
from pipeline.rollout.policy import policy_of
from pipeline.rollout.record import ModelVersion, Phase, Proposal, RolloutEvent, RolloutStep, append, step_event
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from tests.loop import EMBEDDED, ROOT, undrawn
from tests.opened import open_rollout
from tests.pipeline.traces.conftest import observation, write

NAME = "arithmetic"
PROMOTED = datetime(2026, 1, 6, 12, tzinfo=UTC)
SECOND = ModelRef(uri="/models/second", digest="5ec0" * 16)


def day_file(day: int) -> str:
    return f"observations_v2/2026-01-{day:02d}.jsonl.gz"


def at(day: int, hour: int = 10) -> str:
    return f"2026-01-{day:02d} {hour:02d}:00:00.000000"


class Place:
    """A deployment over an export of its own, and what its stage says."""

    def __init__(self, folder: Path, dagster_instance: dg.DagsterInstance, *overrides: str) -> None:
        self.export, self.instance = folder / "export", dagster_instance
        source = json.dumps({"kind": "langfuse_export", "uri": str(self.export)}, separators=(",", ":"))
        self.settings = Deployment(
            recipe_path=str(EMBEDDED),
            overrides=[
                f"data_root={folder / 'data'}",
                f"base_model.uri={ROOT / 'pipeline' / 'demo' / 'model'}",
                f"traces.source={source}",
                "traces.window_days=30",
                *overrides,
            ],
        )

    @property
    def store(self) -> Store:
        return self.settings.store()

    def run(self, *stages: str) -> dg.ExecuteInProcessResult:
        resources = {"deployment": self.settings, "io_manager": records}
        return dg.materialize(
            ASSETS,
            selection=[dg.AssetKey(stage) for stage in stages or ("traces",)],
            instance=self.instance,
            resources=resources,
            raise_on_error=False,
        )

    def said(self, result: dg.ExecuteInProcessResult) -> str:
        return "\n".join(entry.user_message for entry in self.instance.all_logs(result.run_id))

    def iterations(self) -> set[str]:
        return {path.parent.name for path in self.store.path("iterations").glob("*/traces.json")}

    def rows(self) -> list[str]:
        dataset = self.settings.latest().dataset
        return read(self.store, local_lake(self.store), dataset, ["trace_id"])["trace_id"].to_pylist()

    def promote(self, when: datetime = PROMOTED, number: int = 1) -> None:
        """The record of a rollout that ended well."""
        store, base = self.store, self.settings.champion().model
        version = ModelVersion(name=NAME, version=number, run_id="r", model=SECOND, adapter=SECOND, iteration="i")
        policy = policy_of(self.settings.recipe().rollout)
        proposal = Proposal(
            rollout=f"r{number}", version=version, champion=base, verdict="PASS", bundle_digest="b", policy=policy
        )
        seconds = when.timestamp()
        first = RolloutEvent(epoch=1, at=seconds, rollout=f"r{number}", phase=Phase.PROPOSED, proposal=proposal)
        assert append(store, NAME, read_state(store, NAME), first)
        for phase in (Phase.GATED, Phase.SHIFTING, Phase.OBSERVING, Phase.PROMOTED):
            state = read_state(store, NAME)
            assert append(store, NAME, state, step_event(state, seconds, RolloutStep(phase=phase, reason="")))


@pytest.fixture
def dagster_instance() -> Iterator[dg.DagsterInstance]:
    with undrawn(), dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.mark.slow
def test_old_traces_are_nothing_new_after_a_promotion(tmp_path: Path, dagster_instance: dg.DagsterInstance) -> None:
    place = Place(tmp_path, dagster_instance)
    write(place.export, day_file(5), [observation(n) for n in range(1, 6)])
    write(place.export, day_file(6), [observation(10, start_time=at(6, 11))])
    assert place.run().success
    first = place.iterations()
    assert len(first) == 1
    place.promote()
    before = {p: p.read_bytes() for p in place.store.root.rglob("*") if p.is_file() and p.suffix != ".db"}
    again = place.run()
    assert again.success
    assert not again.asset_materializations_for_node("traces")
    assert place.iterations() == first
    assert {p: p.read_bytes() for p in place.store.root.rglob("*") if p.is_file() and p.suffix != ".db"} == before
    (line,) = [text for text in place.said(again).splitlines() if text.startswith("Nothing new")]
    assert "6 rows" in line and "version 1" in line and "2026-01-06 12:00" in line and "traces.attribution" in line


@pytest.mark.slow
def test_newer_traces_start_an_iteration_alone(tmp_path: Path, dagster_instance: dg.DagsterInstance) -> None:
    place = Place(tmp_path, dagster_instance)
    write(place.export, day_file(5), [observation(1)])
    write(place.export, day_file(6), [observation(2, start_time=at(6, 11))])
    assert place.run().success
    first = place.settings.latest()
    place.promote()
    write(place.export, "observations_v2/later.jsonl", [observation(3, start_time=at(6, 13))])
    write(place.export, day_file(7), [observation(4, start_time=at(7))])
    assert place.run().success
    second = place.settings.latest()
    assert second.id != first.id
    assert second.champion == SECOND
    assert place.rows() == ["t3", "t4"]
    assert second.dataset.rows == 2


@pytest.mark.slow
def test_a_wrong_source_is_red_and_mended_by_the_recipe(tmp_path: Path, dagster_instance: dg.DagsterInstance) -> None:
    place = Place(tmp_path, dagster_instance, "traces.consent_key=agreed")
    write(place.export, day_file(5), [observation(n) for n in range(1, 60)])
    failed = place.run()
    assert not failed.success and not place.iterations()
    error_text = str(failed.failure_data_for_node("traces"))
    assert "0 of 59 rows admitted, under the floor of 1%. Rejected: consent 59" in error_text
    mended = Place(tmp_path, dagster_instance)
    assert mended.run().success
    assert mended.settings.latest().dataset.rows == 59


SUITE = 'evaluation.suites=[{"kind":"items","name":"mine","path":"mine.jsonl","check":"math"}]'
GOLDEN = "evaluation.suites=[{kind: items, preset: arithmetic}, {kind: traces, preset: golden, role: guard}]"
VLLM = "training.grpo.generation=vllm_colocate"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "later", "fault"),
    [
        (SUITE, "preference_dataset", "suite mine"),
        (GOLDEN, "preference_dataset", "The suite golden can be frozen from no row"),
        (VLLM, "policy_checkpoint", "this environment lacks vllm"),
    ],
    ids=["suite", "golden", "packages"],
)
def test_a_run_nobody_typed_reads_nothing_that_ends_later(
    tmp_path: Path, dagster_instance: dg.DagsterInstance, override: str, later: str, fault: str
) -> None:
    place = Place(tmp_path, dagster_instance, override, "accept_demo_suite=true", "selection.method=grpo")
    write(place.export, day_file(5), [observation()])
    refused, alone = place.run("traces", "reward_labels", later), place.run("traces", "reward_labels")
    texts = [str(each.events_for_node("traces")) for each in (refused, alone)]
    assert [fault in text for text in texts] == [True, False]
    assert ["Nothing was read yet" in text for text in texts] == [True, False]
    assert not refused.success and not refused.events_for_node("reward_labels")


@pytest.mark.slow
def test_a_gate_without_references_ends_before_labels(tmp_path: Path, dagster_instance: dg.DagsterInstance) -> None:
    suites = "evaluation.suites=[{kind: items, preset: arithmetic}, {kind: traces, preset: production, role: guard}]"
    place = Place(tmp_path, dagster_instance, suites)
    write(place.export, day_file(5), [observation(n, metadata={"user_consent": "true"}) for n in range(1, 6)])
    failed = place.run()
    assert not failed.success and not place.iterations()
    error_text = str(failed.failure_data_for_node("traces"))
    assert "The suite production can be frozen from no row (without a reference: 5)" in error_text


@pytest.mark.slow
def test_an_open_rollout_comes_before_an_iteration(tmp_path: Path, dagster_instance: dg.DagsterInstance) -> None:
    place = Place(tmp_path, dagster_instance, "rollout.drive_for_s=0")
    write(place.export, day_file(5), [observation(n) for n in range(1, 6)])
    rollout = open_rollout(place.settings, tmp_path, 1000.0)
    stopped = place.run(*(each.key.to_user_string() for each in ASSETS))
    assert stopped.success and not stopped.get_asset_materialization_events() and not place.iterations()
    text = f"No iteration is begun while a rollout is open: rollout {rollout} of version 7 is gated at 0%"
    assert text in place.said(stopped)
    assert place.run("traces").success and len(place.iterations()) == 1, "labels may be made meanwhile"


@pytest.mark.slow
def test_a_registered_candidate_comes_before_newer_traces(tmp_path: Path, dagster_instance: dg.DagsterInstance) -> None:
    place = Place(tmp_path, dagster_instance)
    write(place.export, day_file(5), [observation(1)])
    assert place.run().success
    first = place.settings.latest()
    version = ModelVersion(name=NAME, version=1, run_id="r", model=SECOND, adapter=SECOND, iteration=first.id)
    place.store.write(first.path(layout.MODEL_VERSION), version)
    write(place.export, day_file(6), [observation(2, start_time=at(6))])
    again = place.run()
    assert again.asset_materializations_for_node("traces") and place.settings.latest() == first
    assert f"goes on with iteration {first.id}" in place.said(again)
    conclude(place.store, first, "refused", "it lost")
    assert place.run().success and place.settings.latest() != first
