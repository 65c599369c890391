"""`verify`: the log against itself, a head that was noted elsewhere, and the proofs."""

import json
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.governance import main
from pipeline.core import audit, layout
from pipeline.core.storage import Store
from pipeline.governance.erasure.records import ErasureProof, publish
from tests.contexts import KEYS
from tests.loop import EMBEDDED

NOW = datetime(2026, 1, 12, tzinfo=UTC)
PROOF = ErasureProof(id="0123", nonce="n", mark="m", requested=NOW, finished=NOW)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Three entries, the last of which is about a proof."""
    result = Store(tmp_path / "data", KEYS)
    for n in range(2):
        audit.record(result, "admission", f"2026-01-0{n + 1}", {"admitted": n}, NOW)
    publish(result, PROOF, NOW)
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", f"data_root={result.root}")
    return result


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["verify", "--json", *arguments])
    fields = json.loads(capsys.readouterr().out)
    assert code == (0 if fields["intact"] else 1)
    return fields


def test_a_log_that_is_not_as_it_was_written(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Every other way to change one is in `tests/pipeline/core/test_audit.py`."""
    path = store.path(audit.LOG)
    path.write_text(path.read_text().replace('"admitted":1', '"admitted":9'))
    assert said(capsys)["flaw"] == "its content does not have its digest"


def test_a_log_that_was_forged_whole_lacks_the_noted_head(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    head = said(capsys)["head"]
    audit.record(store, "admission", "2026-01-09", {}, NOW)
    assert said(capsys, "--against", head)["intact"], "it has grown since"
    shutil.rmtree(store.path("audit"))
    audit.record(store, "erasure", PROOF.id, {"proof": "forged"}, NOW)
    assert "this is not the log in which it was noted" in said(capsys, "--against", head)["flaw"]


def test_a_proof_that_was_changed_or_is_gone(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    path = store.write(layout.proof(PROOF.id), PROOF.model_copy(update={"mark": "other"}))
    assert said(capsys)["forged"] == [PROOF.id]
    path.unlink()
    assert said(capsys)["lost"] == [PROOF.id]


WATCHED: list[Path] = []


def _refuse_writes(event: str, arguments: tuple[Any, ...]) -> None:
    for root in WATCHED:
        opens = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        if (opens or event in ("os.mkdir", "os.rename", "os.remove")) and Path(str(arguments[0])).is_relative_to(root):
            raise OSError(30, "Read-only file system", str(arguments[0]))


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_read_only_copy_is_verified(has_lock: bool, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    if not has_lock:
        store.path("audit/lock").unlink()
    sys.addaudithook(_refuse_writes)
    WATCHED.append(store.root)
    try:
        assert said(capsys)["intact"]
        with pytest.raises(OSError, match="Read-only"):
            audit.record(store, "admission", "2026-01-10", {}, NOW)
    finally:
        WATCHED.clear()
