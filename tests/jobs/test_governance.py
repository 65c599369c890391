"""The commands as a person types them, and the same as jobs, on a deployment with two days of traces."""

import io
import json
import shlex
import shutil
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.utils import make_new_run_id

from assets.resources import Deployment, deployment
from jobs.governance import drop_overdue, forget, forget_user, lake_upkeep, main
from pipeline.core import audit
from pipeline.core.storage import ModelRef
from pipeline.governance.erasure.records import ErasureProof, Person, proofs
from pipeline.rewards.findings import FindingLine, journal, known
from pipeline.rollout.fold import read_state
from pipeline.rollout.reconcile import wanted_split
from pipeline.rollout.record import Phase, RolloutStep, append, step_event
from pipeline.traces.lake import open_lake
from pipeline.traces.materialize import materialize
from pipeline.traces.records import GovernedTraces
from pipeline.traces.scope import Producer
from pipeline.traces.sources.protocol import Address
from tests.contexts import stage_context
from tests.loop import EMBEDDED, instance
from tests.pipeline.governance.erasure.conftest import ANN, World, _made, world
from tests.pipeline.rollout.local_router import LocalRouter
from tests.pipeline.traces.conftest import observation, write

pytestmark = pytest.mark.slow

__all__ = ["_made", "world"]  # the small world of the erasure's own tests
USER = "user-ann-0001"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment of the environment: two days of an export under the data root, governed."""
    root = tmp_path / "data"
    source = json.dumps({"kind": "langfuse_export", "uri": f"{root}/raw"}, separators=(",", ":"))
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", shlex.join([f"data_root={root}", f"traces.source={source}"]))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for n, day in enumerate(("2026-01-05", "2026-01-06")):
        rows = [observation(10 * n + i, user_id=u, start_time=f"{day} 1{i}:00:00") for i, u in enumerate((USER, "bob"))]
        write(root / "raw", f"observations_v2/{day}.jsonl.gz", rows)
    result = deployment()
    govern(result)
    return result


def govern(settings: Deployment) -> GovernedTraces:
    traces = settings.recipe().traces
    return materialize(
        stage_context(settings.store(), settings.lake(), traces=traces),
        Address(traces.source, settings.source_uri()),
        Producer(ModelRef(uri="m", digest="m"), "m"),
        0,
        datetime(2026, 1, 12, tzinfo=UTC),
    )


def keep(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """One more override for the commands to come."""
    words = deployment().overrides
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", shlex.join([*words, setting]))


def rows_of(settings: Deployment, user: str) -> int:
    with open_lake(settings.lake()) as lake:
        return sum(lake.count(Person.named(user).rows()).values())


def only(settings: Deployment) -> ErasureProof:
    (proof,) = proofs(settings.store())
    return proof


def test_forget_says_what_it_did_and_what_a_person_has_to_see_to(settings: Deployment, capsys) -> None:
    raw = settings.store().path("raw/observations_v2")
    before = {path: path.read_bytes() for path in raw.iterdir()}
    assert main(["forget", USER, "--yes"]) == 1
    output = capsys.readouterr().out
    assert "2 rows of 2 days are erased" in output
    assert "STILL NAME THE USER AS OWNER, and are yours: nothing in them was edited" in output
    assert f"{raw}/2026-01-05.jsonl.gz: 1 rows" in output
    assert USER not in output
    assert {path: path.read_bytes() for path in raw.iterdir()} == before
    shutil.rmtree(raw)
    write(raw.parent, "observations_v2/2026-01-05.jsonl.gz", [observation(1, user_id="bob")])
    assert main(["forget", USER, "--yes"]) == 0
    output = capsys.readouterr().out
    assert "STILL NAME" not in output and "KEPT OUTSIDE" not in output
    first, second = sorted(proofs(settings.store()), key=lambda each: each.finished)
    assert second.follows == first.id and f"Proof {second.id}: " in output
    assert main(["forget", "nobody-at-all", "--yes"]) == 0
    assert "Nothing was found of this user" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "code"), [("n", 2), ("", 2), ("y", 1)])
def test_forget_shows_what_goes_and_asks(
    answer: str, code: int, settings: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer and f"{answer}\n"))
    assert main(["forget", USER]) == code
    shown, place = capsys.readouterr(), "governed table: 2 in 2 (2026-01-05, 2026-01-06)"
    assert place in shown.err and "Forget this user? This cannot be undone." in shown.err
    assert rows_of(settings, USER) == (0 if code == 1 else 2)
    assert (place in shown.out, len(proofs(settings.store()))) == ((True, 1) if code == 1 else (False, 0))


def test_forget_says_what_a_source_of_others_keeps(settings: Deployment, monkeypatch, capsys) -> None:
    for name, value in (("BASE_URL", "https://host"), ("PUBLIC_KEY", "pk"), ("SECRET_KEY", "a-secret")):
        monkeypatch.setenv(f"LANGFUSE_{name}", value)
    keep(monkeypatch, 'traces.source={"kind":"langfuse_api","since":"2026-01-05"}')
    assert main(["forget", USER, "--yes"]) == 0
    output = capsys.readouterr().out
    assert "KEPT OUTSIDE, and its owner's to delete:\n  Langfuse at https://host: delete the user's traces in" in output
    assert "a-secret" not in output
    monkeypatch.delenv("LANGFUSE_SECRET_KEY")
    assert main(["forget", USER, "--yes"]) == 0, "an unknown address keeps nobody from being forgotten"
    assert main(["forget", " ", "--yes"]) == 2
    assert "Give the id" in capsys.readouterr().err


def test_findings_lose_what_any_run_of_retention_dropped(settings: Deployment) -> None:
    """A run that was killed, or that could not list its source, after the days were dropped: the next one clears up."""
    store, day = settings.store(), "2026-01-05"
    for each in (day, "2026-01-06"):
        journal(store, each).add(FindingLine(key="k", source="verifier", account="i", trace_id="t"))
    retired = store.path("traces", "days", "retired", f"{day}.json")
    retired.parent.mkdir()
    store.path("traces", "days", f"{day}.json").rename(retired)
    drop_overdue(settings, print)
    assert not known(store, day, {"k"}) and known(store, "2026-01-06", {"k"})


def test_forget_takes_its_id_from_stdin(settings: Deployment, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{USER}\r\ny\n"))
    assert main(["forget", "-"]) == 1
    assert "2 rows of 2 days are erased" in capsys.readouterr().out
    assert rows_of(settings, USER) == 0


def test_a_canary_that_is_blocked_loses_its_traffic_at_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    place = world.place
    settings = Deployment(
        recipe_path=str(EMBEDDED), overrides=[f"data_root={place.root}", f"base_model.name={world.first.model_name}"]
    )
    place.propose(world.first)
    state = read_state(place.store, "demo")
    for phase in (Phase.GATED, Phase.SHIFTING, Phase.OBSERVING):
        append(place.store, "demo", state, step_event(state, 1.0, RolloutStep(phase=phase, reason="")))
        state = read_state(place.store, "demo")
    router = LocalRouter(place.store, "demo")
    router.apply(wanted_split(state, 0.0))
    proof = forget_user(settings, ANN, print)
    assert "demo version 1" in proof.affected.versions
    assert read_state(place.store, "demo").phase is Phase.ABORTED
    split = router.read()
    assert split is not None
    assert split.canary_weight == 0
    assert ANN not in capsys.readouterr().out


def test_forget_job_keeps_the_users_name_out_of_dagster(
    settings: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORGET_USER", USER)
    config = {"ops": {"forget_one": {"config": {"user_id": {"env": "FORGET_USER"}}}}}
    home = tmp_path / "dagster"
    with instance(home) as dagster_instance:
        run_id = make_new_run_id()
        with pytest.raises(dg.Failure, match="2 files of yours still name the user as owner"):
            forget.execute_in_process(
                config, instance=dagster_instance, resources={"deployment": settings}, run_id=run_id
            )
        run = dagster_instance.get_run_by_id(run_id)
        assert run is not None
        assert USER not in str(run.tags)
        assert USER not in str(run.run_config)
    assert only(settings).rows == {"2026-01-05": 1, "2026-01-06": 1}
    kept = [p for p in home.rglob("*") if p.is_file()]
    assert kept
    assert not [p for p in kept if USER.encode() in p.read_bytes()]


def test_the_upkeep_job_retains_and_tidies(settings: Deployment, tmp_path: Path) -> None:
    settings = Deployment(recipe_path=settings.recipe_path, overrides=[*settings.overrides, "traces.governed_days=1"])
    with instance(tmp_path / "dagster") as home:
        done = lake_upkeep.execute_in_process(instance=home, resources={"deployment": settings})
        said = "\n".join(entry.user_message for entry in home.all_logs(done.run_id))
    assert done.success and "Dropped 2 governed days" in said and "Swept" in said
    assert rows_of(settings, "bob") == 0
    assert [e.kind for e in audit.entries(settings.store())] == ["admission", "admission", "retention"]


def test_who_was_forgotten_since_is_forgotten_again(
    settings: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = settings.store().root
    backup = shutil.copytree(root, tmp_path / "backup")
    main(["forget", USER, "--yes"])
    (first,) = proofs(settings.store())
    main(["forget", "somebody-else", "--yes"])
    capsys.readouterr()
    assert main(["blocks"]) == 0 and "No model is blocked" in capsys.readouterr().out
    assert main(["forgotten"]) == 0
    listed = tmp_path / "forgotten.json"
    listed.write_text(capsys.readouterr().out)
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    assert rows_of(settings, USER) == 2
    monkeypatch.setattr("sys.stdin", io.StringIO())  # a list is not asked about
    assert main(["reapply", str(listed)]) == 0
    assert "2 users are on the list; 1 of them had rows here" in capsys.readouterr().out
    assert rows_of(settings, USER) == 0 and rows_of(settings, "bob") == 2
    assert first.id in {proof.id for proof in proofs(settings.store())}, "under the id of the first proof"
    assert main(["verify"]) == 0
    listed.write_text("user-ann\n")
    assert main(["reapply", str(listed)]) == 2
    assert "is not what `pt governance forgotten` prints" in capsys.readouterr().err
