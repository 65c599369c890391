"""Forgetting a user for real: a lake, MLflow and every file that the stages leave, before and after."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core import audit, layout
from pipeline.core.storage import ModelRef, digest_dir, digest_json
from pipeline.governance.erasure import blocked_iteration, preview
from pipeline.governance.erasure.records import Affected, ErasureProof, Person, proofs
from pipeline.registry import versions
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.rollout.fold import read_state
from pipeline.rollout.propose import champion
from pipeline.rollout.record import Phase, RolloutStep, append, blocks, step_event
from pipeline.traces.erased import erased_users
from pipeline.traces.lake import open_lake
from tests.contexts import mark_of, stage_context
from tests.pipeline.governance.erasure.conftest import ANN, BOB, CYD, DAYS, NAME, NOW, Place, World, secret
from tests.pipeline.governance.erasure.looking import contents, erase, holding, words_of

pytestmark = pytest.mark.slow


class Erased(NamedTuple):
    """A copy of the world without Ann, the world as it was, and the proof."""

    world: World
    before: Place
    proof: ErasureProof


@pytest.fixture(scope="module")
def erased(_made: tuple[World, Path], tmp_path_factory: pytest.TempPathFactory) -> Erased:
    place = Place(tmp_path_factory.mktemp("erased") / "data")
    shutil.copytree(_made[1], place.root)
    return Erased(replace(_made[0], place=place), Place(_made[1]), erase(place))


def test_no_byte_of_the_user_is_left_and_the_others_stay(erased: Erased) -> None:
    world, proof, root = erased.world, erased.proof, erased.world.place.root
    before = holding(erased.before.root, *words_of(ANN))
    assert {name.split("/")[0] for name in before} >= {"lake", "production", "traces", "iterations"}
    files = {Path(name).name for name in before}
    assert {"pairs.parquet", "prompts.parquet", "thumbs.parquet", "data.parquet"} <= files
    assert {"half.parquet", "held_out.parquet", "step-000001.parquet", "train.parquet"} <= files
    folders = {Path(name).parent.name for name in before if "reward" in name}
    assert folders >= {"reward_labels", ".reward_labels.0f", *DAYS[:2]}, "labels, and what was found about each"
    assert holding(root, *words_of(ANN)) == set()
    assert proof.remains == ()
    with open_lake(world.place.lake) as lake:
        rows = lake.read(DAYS, lake.snapshot, ["user_id", "messages"]).to_pylist()
    assert [r["user_id"] for r in rows].count(BOB) == 18
    assert [r["user_id"] for r in rows].count(CYD) == 6
    kept = holding(root, secret(BOB))
    assert any("production" in name for name in kept)
    for each in (world.first, world.second):
        assert any(name.startswith(each.path("reward_labels/")) for name in kept), "others keep their labels"
    labels = [pq.read_table(path) for path in root.glob(world.first.path("reward_labels/*.parquet"))]
    assert {user for table in labels for user in table["user_id"].to_pylist()} == {BOB}
    left = [json.loads(line) for path in root.glob("rewards/findings/*/*.jsonl") for line in path.open()]
    assert {line["owner"] for line in left} == {BOB, CYD}


def test_a_reward_model_of_their_thumbs_is_affected(world: World) -> None:
    store, models = world.place.store, {}
    for iteration in (world.first, world.second):
        folder = store.path(iteration.path("reward_model", "model"))
        folder.mkdir(parents=True)
        (folder / "head.safetensors").write_text(f"weights of {iteration.id}")
        rows = store.path(iteration.path(".reward_model.0123"))
        rows.mkdir()
        text = secret(ANN if iteration is world.first else CYD)
        pq.write_table(pa.table({"completion": [text]}), rows / "rows.parquet")  # of a training that was killed
        models[iteration.id] = ModelRef(uri=str(folder), digest=digest_dir(folder))
        report = RewardModelReport(iteration=iteration.id, model=models[iteration.id])
        store.write(iteration.path("reward_model.json"), report)
    proof = erase(world.place)
    hers, others = models[world.first.id], models[world.second.id]
    assert f"{world.first.id}/reward model {hers.digest}" in proof.affected.checkpoints
    assert hers.digest in proof.affected.digests
    assert others.digest not in str(proof.affected)
    assert digest_dir(store.path(hers.uri)) == hers.digest, "weights are blocked, not deleted"
    assert not store.path(world.first.path(".reward_model.0123")).exists()
    assert store.path(world.second.path(".reward_model.0123")).exists()
    assert any(hers.digest in block.digests for block in blocks(store))


def test_what_is_affected_is_listed_exactly(erased: Erased) -> None:
    world, proof = erased.world, erased.proof
    first, second, third = world.first, world.second, world.third
    assert proof.rows == {DAYS[0]: 6, DAYS[1]: 6}
    assert proof.affected.datasets == tuple(sorted({first.dataset.digest, third.dataset.digest}))
    assert proof.affected.iterations == tuple(sorted({first.id, third.id}))
    assert proof.affected.versions == ("demo version 1", "demo version 3")
    assert proof.affected.inherited == ("demo version 2",)
    assert {world.place.model(each).digest for each in (first, third)} <= set(proof.affected.digests)
    assert f"{first.id}/step-000001" in proof.affected.checkpoints
    assert len(proof.affected.checkpoints) == 6
    assert not any(name.startswith(second.id) for name in proof.affected.checkpoints)
    assert not world.place.store.path(f"traces/datasets/{first.dataset.digest}.json").exists()
    assert world.place.store.path(f"traces/datasets/{second.dataset.digest}.json").exists()


def test_days_of_the_user_alone_are_made_again(erased: Erased) -> None:
    place = erased.world.place
    with open_lake(place.lake) as lake:
        digests = lake.digests()
    assert place.reports() == erased.before.reports()
    assert {day for day, report in place.reports().items() if report.digest != digests[day]} == set(DAYS[:2])
    for day in DAYS:
        lines = [json.loads(x) for x in place.store.path(f"traces/rejected/{day}.jsonl").read_text().splitlines()]
        assert [line["trace_id"] is None for line in lines] == [day in DAYS[:2], False]


def test_blocked_versions_are_refused_and_mlflow_says_why(erased: Erased) -> None:
    place, proof = erased.world.place, erased.proof
    assert place.propose(erased.world.first) == (
        f"version 1 is blocked: it learned from data that erasure {proof.id} removed"
    )
    client = versions.mlflow_client(place.tracking_uri)
    for number, is_blocked in (("1", True), ("2", False), ("3", True)):
        tags = client.get_model_version(NAME, number).tags
        assert tags.get("blocked") == (f"erasure {proof.id}" if is_blocked else None)
        assert ("learned from data" in tags.get("blocked_reason", "")) is is_blocked
    assert [each.proof for each in blocks(place.store)] == [proof.id]


def test_no_file_of_mlflow_is_changed(erased: Erased) -> None:
    before, after = (contents(place.root / "mlflow") for place in (erased.before, erased.world.place))
    assert before and not [n for n in before if ".db" not in n and after[n] != before[n]]


def test_a_rollout_of_a_blocked_candidate_is_taken_back(world: World) -> None:
    assert world.place.propose(world.first) == ""
    erase(world.place)
    state = read_state(world.place.store, NAME)
    assert state.phase is Phase.ROLLING_BACK
    assert not state.quarantine
    assert "is blocked" in state.reason


def promote(place: Place) -> None:
    state = read_state(place.store, NAME)
    path = [(Phase.GATED, 0)]
    for stage in range(3):
        path += [(Phase.SHIFTING, stage), (Phase.OBSERVING, stage)]
    for phase, stage in [*path, (Phase.PROMOTED, 2)]:
        event = step_event(state, 1.0, RolloutStep(phase=phase, reason="", stage=stage))
        assert append(place.store, NAME, state, event)
        state = read_state(place.store, NAME)


def test_champion_that_learned_from_the_data_is_in_the_proof(world: World) -> None:
    world.place.propose(world.first)
    promote(world.place)
    proof = erase(world.place)
    serving = champion(world.place.store, NAME)
    assert serving is not None
    assert serving.version == 1
    assert proof.champion == "demo version 1 is the champion and serves on; replace it to end that"


def test_an_unknown_user_is_a_clear_result_and_still_on_the_list(world: World) -> None:
    reports = world.place.reports()
    proof = erase(world.place, "user-nobody-9")
    assert proof.places == {} and proof.affected == Affected()
    assert world.place.reports() == reports
    assert [u.mark for u in erased_users(world.place.store).users] == [mark_of("user-nobody-9")]
    assert world.place.propose(world.first) == ""


def test_a_repetition_appends_a_proof_and_changes_none(world: World) -> None:
    first = erase(world.place)
    before = contents(world.place.root)
    second = erase(world.place)
    assert (second.follows, second.places, second.affected) == (first.id, {}, Affected())
    after = contents(world.place.root)
    new = {name for name in after if name not in before}
    assert new == {f"erasures/{second.id}.json"}
    assert {name for name in before if after.get(name) != before[name]} <= {"audit/log.jsonl", "audit/head.json"}
    assert [e.kind for e in audit.entries(world.place.store)].count("erasure") == 2


def test_the_preview_counts_what_goes_and_changes_nothing(world: World) -> None:
    place, before = world.place, contents(world.place.root)
    context = stage_context(place.store, place.lake, name=NAME)
    found = preview(context, Person.named(ANN), place.tracking_uri)
    after = contents(place.root)
    assert after.keys() == before.keys() and not [n for n in after if ".db" not in n and after[n] != before[n]]
    proof = erase(place)
    assert (found.places, found.affected) == (proof.places, proof.affected)
    assert found.places["governed table"] == {DAYS[0]: 6, DAYS[1]: 6}
    assert preview(context, Person.named(ANN), place.tracking_uri).places == {}


def test_the_proof_and_the_audit_entry_name_nobody(erased: Erased) -> None:
    world, proof = erased.world, erased.proof
    (entry,) = [e for e in audit.entries(world.place.store) if e.kind == "erasure"]
    assert (entry.subject, entry.detail["proof"]) == (proof.id, digest_json(proof))
    assert mark_of(ANN) not in str(entry.detail) and proof.mark == mark_of(ANN)
    assert not audit.verify(world.place.store).flaw


def test_erasure_knows_who_was_in_what_the_last_one_removed(world: World) -> None:
    erase(world.place, ANN)
    proof = erase(world.place, BOB)
    assert proof.affected.iterations == tuple(sorted({world.first.id, world.second.id, world.third.id}))
    later = erase(world.place, CYD)
    assert later.affected.iterations == (world.second.id,)
    assert holding(world.place.root, ANN, BOB, CYD) == set()


def test_an_empty_id_forgets_nobody(world: World) -> None:
    with pytest.raises(ValueError, match="Give the id"):
        erase(world.place, " ")


def test_a_version_that_is_born_late_is_tagged_and_in_the_proof(world: World) -> None:
    place, first = world.place, world.first
    result, version = (place.store.path(first.path(name)) for name in ("training/result.json", "model_version.json"))
    kept = [path.read_bytes() for path in (result, version)]
    for path in (result, version):
        path.unlink()  # the training is still under way
    client = versions.mlflow_client(place.tracking_uri)
    client.set_model_version_tag(NAME, "1", "iteration", "not yet")
    proof = erase(place)
    assert proof.affected.versions == ("demo version 3",)
    assert place.store.path(first.path("training/blocked.json")).exists(), "its trainer is told"
    for path, content in zip((result, version), kept, strict=True):
        path.write_bytes(content)
    client.set_model_version_tag(NAME, "1", "iteration", first.id)
    assert place.model(first).digest not in proof.affected.digests
    reason = blocked_iteration(place.store, place.tracking_uri, first, NOW)
    assert reason.startswith(f"iteration {first.id} is blocked: it learned from data that erasure {proof.id} removed")
    assert place.store.read(layout.proof(proof.id), ErasureProof) == proof, "a finished proof is never changed"
    (late,) = (each for each in proofs(place.store) if each.follows == proof.id)
    assert late.affected.versions == ("demo version 1",) and late.places == {}
    assert place.model(first).digest in late.affected.digests
    assert place.model(first).digest in blocks(place.store)[0].digests
    assert client.get_model_version(NAME, "1").tags["blocked"] == f"erasure {proof.id}"
    entries = [e for e in audit.entries(place.store) if e.kind == "erasure"]
    assert entries[-1].detail["proof"] == digest_json(late)
    assert blocked_iteration(place.store, place.tracking_uri, first, NOW) == reason
    assert len([e for e in audit.entries(place.store) if e.kind == "erasure"]) == len(entries), "twice is once"


def test_an_iteration_of_others_is_not_blocked(world: World) -> None:
    erase(world.place)
    assert blocked_iteration(world.place.store, world.place.tracking_uri, world.second, NOW) == ""
