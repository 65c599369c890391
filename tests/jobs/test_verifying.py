"""`verify` against whoever can write to the data root: the log itself, its anchors, and what stands beside it.

One deployment with a rollout, two governed days and two erasures; each test puts it back, and tampers with it.
"""

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from mlflow import MlflowClient

from assets.resources import Deployment, deployment
from jobs.clean import main as clean
from jobs.governance import main
from pipeline import audit
from pipeline.erasure.proof import proofs
from pipeline.storage import Store
from pipeline.traces.erased import ErasedUsers, erased_users
from tests.contexts import KEYS
from tests.jobs.rollout.decided import look
from tests.jobs.test_governance import govern
from tests.loop import EMBEDDED
from tests.opened import open_rollout
from tests.pipeline.traces.conftest import observation, write

pytestmark = pytest.mark.slow

INSTANCE = "telemetry:\n  enabled: false\n"
USERS = ("user-ann-0001", "user-bob-0002", "user-cyd-0003")


class Watched(NamedTuple):
    """The deployment, what its root was at its end, and what it was before the second erasure."""

    root: Path
    kept: Path
    older: Path

    @property
    def store(self) -> Store:
        return Store(self.root, KEYS)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    root, home = folder / "data", folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(INSTANCE)
    base = EMBEDDED.parents[2] / "pipeline" / "demo" / "model"
    source = json.dumps({"kind": "langfuse_export", "uri": f"{root}/raw"}, separators=(",", ":"))
    words = [f"data_root={root}", f"base_model.uri={base}", f"traces.source={source}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
        patch.setenv("PREFERENCE_TUNING_OVERRIDES", shlex.join(words))
        patch.setenv("DAGSTER_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        settings = deployment()
        made(settings, folder)
        older = Path(shutil.copytree(root, folder / "older"))
        assert main(["forget", USERS[1]]) == 0
        yield Watched(root, Path(shutil.copytree(root, folder / "kept")), older)


def made(settings: Deployment, folder: Path) -> None:
    client = MlflowClient(settings.tracking_uri(), settings.tracking_uri())
    client.create_registered_model(settings.recipe().base_model.name)
    for _ in range(7):
        client.create_model_version(settings.recipe().base_model.name, source=str(folder))
    open_rollout(settings, folder, 1000.0, "bob")
    for n in range(1, 8):
        look(settings, 1000.0 + n)
    root = settings.store().root
    for n, day in enumerate(("2026-01-05", "2026-01-06")):
        rows = [observation(10 * n + i, user_id=u, start_time=f"{day} 1{i}:00:00") for i, u in enumerate(USERS)]
        write(root / "raw", f"observations_v2/{day}.jsonl.gz", rows)
    govern(settings)
    assert main(["forget", USERS[0]]) == 0


@pytest.fixture
def place(watched: Watched) -> Watched:
    shutil.rmtree(watched.root)
    shutil.copytree(watched.kept, watched.root)
    return watched


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["verify", "--json"])
    fields = json.loads(capsys.readouterr().out)
    assert code == (0 if fields["intact"] else 1)
    return fields


def lines(store: Store) -> list[bytes]:
    return store.path(audit.LOG).read_bytes().splitlines(keepends=True)


def put(store: Store, content: list[bytes]) -> None:
    store.path(audit.LOG).write_bytes(b"".join(content))


def changed(content: list[bytes]) -> list[bytes]:
    return [content[0].replace(b"T", b"t", 1), *content[1:]]


def inserted(content: list[bytes]) -> list[bytes]:
    return [*content[:2], content[0], *content[2:]]


def rechained(store: Store, entries: list[audit.Entry]) -> None:
    """A log and a head of these entries, as somebody makes them who knows how."""
    previous, content = audit.START, b""
    for n, entry in enumerate(entries, start=1):
        entry = entry.after(n, previous)
        previous = entry.digest
        content += entry.model_dump_json().encode() + b"\n"
    store.path(audit.LOG).write_bytes(content)
    store.write(audit.HEAD, audit.Head(n=len(entries), digest=previous))


def without(store: Store, kind: str, keep: int = 0) -> None:
    """The log without the entries of a kind but the first few."""
    met = 0
    kept: list[audit.Entry] = []
    for entry in audit.entries(store):
        met += entry.kind == kind
        if entry.kind != kind or met <= keep:
            kept.append(entry)
    rechained(store, kept)


def restore(place: Watched, *names: str) -> None:
    for name in names:
        shutil.copy(place.older / name, place.root / name)


def later_entries_earlier(store: Store) -> None:
    back = (datetime(2026, 1, 12, tzinfo=UTC) - timedelta(days=90)).isoformat(timespec="microseconds")
    entries = list(audit.entries(store))
    rechained(store, [*entries[:-1], entries[-1].model_copy(update={"at": back})])


def other_log(store: Store) -> None:
    """Of a deployment that let in the same days."""
    shutil.rmtree(store.path("audit"))
    for day in ("2026-01-05", "2026-01-06"):
        audit.record(store, "admission", day, {"admitted": 3}, datetime(2026, 1, 12, tzinfo=UTC))


def merged(store: Store) -> None:
    own = list(audit.entries(store))
    rechained(store, [entry for pair in zip(own, own[::-1], strict=True) for entry in pair])


def edit_proof(store: Store) -> None:
    proof = proofs(store)[0]
    store.write(f"erasures/{proof.id}.json", proof.model_copy(update={"rows": {}}))


def unlist(store: Store) -> None:
    users = erased_users(store).users
    store.write("traces/erased.json", ErasedUsers(users=users[1:]))


def unlist_both(store: Store) -> None:
    """The list and the proof of somebody, to another user's mark."""
    users = erased_users(store).users
    swapped = users[0].model_copy(update={"mark": "0" * 8 + users[0].mark[8:]})
    store.write("traces/erased.json", ErasedUsers(users=(swapped, *users[1:])))
    (proof,) = [each for each in proofs(store) if each.id == swapped.proof]
    store.write(f"erasures/{proof.id}.json", proof.model_copy(update={"mark": swapped.mark}))


def events(store: Store) -> list[Path]:
    return sorted(next(store.path("rollout").glob("*/events")).glob("*.json"))


def undecided(store: Store) -> None:
    """The newest event that was logged, and the looks after it, which decided nothing and are in no log."""
    last = max(int(entry.detail["epoch"]) for entry in audit.entries(store) if "epoch" in entry.detail)
    for path in events(store)[last - 1 :]:
        path.unlink()


def younger_list_older_rest(place: Watched) -> None:
    restore(place, audit.LOG, audit.HEAD, "audit/anchored.json", "traces/erased.json")
    for proof in proofs(place.store):
        if not (place.older / "erasures" / f"{proof.id}.json").exists():
            place.store.path("erasures", f"{proof.id}.json").unlink()


CASES: dict[str, tuple[Callable[[Watched], object], str]] = {
    "a changed byte": (lambda p: put(p.store, changed(lines(p.store))), "line 1:"),
    "a removed line": (lambda p: put(p.store, [*lines(p.store)[:2], *lines(p.store)[3:]]), "line 3:"),
    "an inserted line": (lambda p: put(p.store, inserted(lines(p.store))), "line 3:"),
    "swapped lines": (
        lambda p: put(p.store, [lines(p.store)[1], lines(p.store)[0], *lines(p.store)[2:]]), "line 1:"),
    "a cut tail": (lambda p: put(p.store, lines(p.store)[:-1]), "1 lines are gone from the end"),
    "the head alone, of before": (lambda p: restore(p, audit.HEAD), "does not end as audit/head.json says"),
    "log and head of before": (lambda p: restore(p, audit.LOG, audit.HEAD), "lines are gone from the end"),
    "log, head, list and proofs of before": (younger_list_older_rest, "lines are gone from the end"),
    "re-chained without an erasure": (lambda p: without(p.store, "erasure", keep=1), "lines are gone from the end"),
    "re-chained without an admission": (lambda p: without(p.store, "admission", keep=1), "another line stood here"),
    "re-chained without a hold": (lambda p: without(p.store, "hold"), "another line stood here"),
    "the log deleted": (lambda p: p.store.path(audit.LOG).unlink(), "and there is none now"),
    "the log and its head deleted": (lambda p: shutil.rmtree(p.store.path("audit")), "and there is none now"),
    "another deployment's log": (lambda p: other_log(p.store), "and this is another one"),
    "two logs merged": (lambda p: merged(p.store), "another line stood here"),
    "a time set back": (lambda p: later_entries_earlier(p.store), "another line stood here"),
    "a proof edited": (lambda p: edit_proof(p.store), "forged"),
    "a proof deleted": (lambda p: p.store.path("erasures", f"{proofs(p.store)[0].id}.json").unlink(), "lost"),
    "an entry of the list removed": (lambda p: unlist(p.store), "lacks the user of erasure"),
    "a mark swapped in list and proof": (lambda p: unlist_both(p.store), "forged"),
    "the last decision of a rollout removed": (lambda p: undecided(p.store), "which is not there"),
    "a rollout event removed": (lambda p: events(p.store)[1].unlink(), "is missing, though later events are there"),
}  # fmt: skip


@pytest.mark.parametrize("how", CASES)
def test_a_tampering_is_found(how: str, place: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    tamper, words = CASES[how]
    tamper(place)
    fields = said(capsys)
    assert not fields["intact"]
    assert fields[words] if words in ("forged", "lost") else any(words in flaw for flaw in fields["flaws"]), fields


BESIDE = ("re-chained without an erasure", "re-chained without an admission", "re-chained without a hold",
          "log and head of before", "the log and its head deleted", "another deployment's log", "a time set back",
          "two logs merged")  # fmt: skip


@pytest.mark.parametrize("how", BESIDE)
def test_what_stands_beside_tells_without_an_anchor(
    how: str, place: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    CASES[how][0](place)
    fields = said(capsys)
    assert not fields["intact"], fields
    assert "Compared with no anchor" in fields["notes"][0]


def test_an_untouched_deployment_is_intact(place: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    fields = said(capsys)
    assert (fields["intact"], fields["flaws"], fields["notes"]) == (True, [], [])
    assert main(["verify"]) == 0
    assert "anchors in Dagster agree, up to line" in capsys.readouterr().out


def test_an_instance_out_of_reach_is_said_and_no_failure(
    place: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert main(["verify"]) == 0
    assert "Compared with no anchor: Dagster's instance cannot be read (no Dagster instance" in capsys.readouterr().out
    (tmp_path / "dagster.yaml").write_text(INSTANCE)
    assert main(["verify"]) == 0
    assert "No anchor is of this log" in capsys.readouterr().out


def test_lost_keys_of_marks_are_noted(
    place: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFERENCE_TUNING_MARK_KEYS", "ab" * 32)
    (note,) = [each for each in said(capsys)["notes"] if "forgotten elsewhere" in each]
    assert note.startswith("Not compared with who was forgotten elsewhere: ")


def test_a_locked_bucket_knows_what_dagster_lost(
    place: Watched, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))  # no instance is there, nor is one of before
    monkeypatch.setenv("AUDIT_ANCHORS_URI", f"s3://{bucket}")
    assert main(["verify"]) == 2
    assert "has no object lock" in capsys.readouterr().err
    boto3.client("s3").create_bucket(Bucket=f"{bucket}-locked", ObjectLockEnabledForBucket=True)
    monkeypatch.setenv("AUDIT_ANCHORS_URI", f"s3://{bucket}-locked/here")
    place.store.path("audit/anchored.json").unlink()
    assert main(["blocks"]) == 0
    capsys.readouterr()
    assert main(["verify"]) == 0
    assert f"1 anchors in s3://{bucket}-locked/here agree" in capsys.readouterr().out
    restore(place, audit.LOG, audit.HEAD)
    assert any(f"when it was noted in s3://{bucket}-locked/here on" in flaw for flaw in said(capsys)["flaws"])


def test_a_moved_root_is_told_by_its_log(
    place: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = shutil.copytree(place.root, tmp_path / "moved")
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", f"data_root={moved}")
    assert f"This log was anchored under {place.root} alone" in said(capsys)["notes"][0]


def test_a_log_that_clean_kept_is_compared_with_what_was_kept(
    place: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place.root, tmp_path / "data")
    assert clean(["--confirm", "yes"]) == 0
    (kept,) = tmp_path.glob("kept-*")
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", f"data_root={kept}")
    fields = said(capsys)
    assert (fields["intact"], fields["flaws"]) == (True, [])
    assert "has no deployment" in fields["notes"][-1]
    unlist(Store(kept))
    assert not said(capsys)["intact"]
