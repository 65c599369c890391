"""A backup that is older than an erasure: nothing reads it before the user is forgotten again."""

import shutil
from pathlib import Path

import pytest

from assets.anchors import refuse_restored
from assets.resources import deployment
from jobs.anchoring import command_instance
from jobs.governance import main
from pipeline.erasure.proof import proofs
from pipeline.storage import Store
from tests.jobs.test_governance import rows_of
from tests.jobs.test_verifying import USERS, Watched, watched

pytestmark = pytest.mark.slow

__all__ = ["watched"]


@pytest.fixture
def restored(watched: Watched) -> Watched:
    shutil.rmtree(watched.root)
    shutil.copytree(watched.older, watched.root)
    return watched


def refused(store: Store) -> None:
    with (
        command_instance() as instance,
        pytest.raises(ValueError, match="is older than 1 erasures"),
    ):
        refuse_restored(instance, store)


def test_a_restored_user_is_forgotten_again_by_the_anchors(restored: Watched, capsys) -> None:
    (again,) = {proof.id for proof in proofs(Store(restored.kept))} - {proof.id for proof in proofs(restored.store)}
    assert rows_of(deployment(), USERS[1]) == 2
    refused(restored.store)
    assert main(["reapply"]) == 0
    assert "1 users are on the list; 1 of them had rows here" in capsys.readouterr().out
    assert rows_of(deployment(), USERS[1]) == 0 and rows_of(deployment(), USERS[2]) == 2
    assert again in {proof.id for proof in proofs(restored.store)}, "under the id of the first proof"
    with command_instance() as instance:
        refuse_restored(instance, restored.store)


def test_a_list_stands_in_for_a_lost_instance(
    restored: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    listed = tmp_path / "forgotten.json"
    shutil.copy(restored.kept / "traces" / "erased.json", listed)
    assert main(["reapply", str(listed)]) == 0
    assert "2 users are on the list; 1 of them had rows here" in capsys.readouterr().out
    assert rows_of(deployment(), USERS[1]) == 0
    listed.write_text("user-ann\n")
    assert main(["reapply", str(listed)]) == 2
    assert "is not what `pt governance forgotten` prints" in capsys.readouterr().err


def test_a_killed_reapply_is_refused_until_it_is_done(restored: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.governance.forget_user", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        main(["reapply"])
    refused(restored.store)
    monkeypatch.undo()
