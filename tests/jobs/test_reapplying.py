"""A backup that is older than an erasure: who was forgotten since is forgotten again, by a list of marks."""

import io
import shutil
from pathlib import Path

import pytest

from assets.resources import Deployment
from jobs.governance import main
from pipeline.governance.erasure.proof import proofs
from tests.jobs.test_governance import USER, rows_of, settings

pytestmark = pytest.mark.slow

__all__ = ["settings"]


def test_who_was_forgotten_since_is_forgotten_again(
    settings: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = settings.store().root
    backup = shutil.copytree(root, tmp_path / "backup")
    main(["forget", USER, "--yes"])
    (first,) = proofs(settings.store())
    main(["forget", "somebody-else", "--yes"])
    capsys.readouterr()
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
