"""A log that was restored from a backup: accepted by a signature, shown for ever, and by nobody without a key."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.governance import main
from pipeline import audit
from pipeline.audit_restored import RESTORED, Restore
from pipeline.signatures import sign
from pipeline.storage import Store
from tests.jobs.test_verifying import Watched, rechained, said, watched
from tests.pipeline.rollout.signers import needs_ssh_keygen, new_key, signer_line, signers_file

__all__ = ["watched"]
pytestmark = [needs_ssh_keygen, pytest.mark.slow]
ACCEPT = ["accept", "--reason", "disk lost, backup of Monday"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: new_key(folder, name) for name in ("ada", "eve")}


@pytest.fixture(scope="module")
def accepted(watched: Watched, keys: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data root of before the second erasure, put back, reapplied and accepted by ada; a copy of it and of the
    instance with the anchors."""
    folder = tmp_path_factory.mktemp("signers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUDIT_SIGNERS", str(signers_file(folder, signer_line("ada@example.org", keys["ada"]))))
        shutil.rmtree(watched.root)
        shutil.copytree(watched.older, watched.root)
        assert main([*ACCEPT, "--key", str(keys["ada"])]) == 2, "users are here again"
        assert main(["reapply"]) == 0
        assert main(["verify"]) == 1
        assert main([*ACCEPT, "--key", str(keys["eve"])]) == 2
        assert main([*ACCEPT, "--key", str(keys["ada"])]) == 0
    shutil.copytree(watched.root, folder / "data")
    shutil.copytree(watched.root.with_name("home"), folder / "home")
    return folder


@pytest.fixture
def restored(
    accepted: Path, watched: Watched, keys: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Store:
    for name in ("data", "home"):
        shutil.rmtree(watched.root.with_name(name))
        shutil.copytree(accepted / name, watched.root.with_name(name))
    signers = signers_file(tmp_path, signer_line("ada@example.org", keys["ada"]))
    monkeypatch.setenv("AUDIT_SIGNERS", str(signers))
    return watched.store


@pytest.mark.variant
def test_an_accepted_restore_passes_and_stays_visible(restored: Store, capsys: pytest.CaptureFixture[str]) -> None:
    fields = said(capsys)
    assert (fields["intact"], fields["flaws"]) == (True, [])
    (line,) = fields["restored"]
    assert "ada@example.org accepted on" in line and "disk lost, backup of Monday" in line and "up to" in line
    audit.record(restored, "retry", "later", {}, datetime.now(UTC))
    assert main(["verify"]) == 0
    assert line in capsys.readouterr().out
    assert main([*ACCEPT, "--key", "unused"]) == 2
    assert "there is nothing to accept" in capsys.readouterr().err


def test_without_a_key_the_line_to_sign_is_printed(
    restored: Store, watched: Watched, keys: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_the_entry(restored, keys["ada"])
    assert main(ACCEPT) == 1
    printed = capsys.readouterr().out.splitlines()
    line = printed[1].strip() + "\n"
    assert line.startswith("accept restored log ")
    (tmp_path / "sig").write_text(sign(line, keys["ada"]))
    at = printed[2].split("--line ")[1].split()[0]
    audit.record(restored, "retry", "meanwhile", {}, datetime.now(UTC))
    assert main([*ACCEPT, "--line", at, "--signature", str(tmp_path / "sig")]) == 0
    assert [entry.kind for entry in audit.entries(restored)][-1] == RESTORED


def entry_of(store: Store) -> audit.Entry:
    (entry,) = [each for each in audit.entries(store) if each.kind == RESTORED]
    return entry


def changed(**fields: Any) -> Callable[[Store, Path], None]:
    def change(store: Store, key: Path) -> None:
        entry = entry_of(store)
        others = [each for each in audit.entries(store) if each.kind != RESTORED]
        rechained(store, [*others, entry.model_copy(update={"detail": {**entry.detail, **fields}})])

    return change


def signed_by_another(store: Store, key: Path) -> None:
    restore = Restore.model_validate(entry_of(store).detail)
    changed(signature=sign(restore.signed_line(), key))(store, key)


def without_an_erasure(store: Store, key: Path) -> None:
    """Lines of before are changed, and the acceptance kept."""
    rechained(store, [entry for entry in audit.entries(store) if entry.kind != "admission"])


def cut_behind_it(store: Store, key: Path) -> None:
    """Lines after the acceptance are taken out again, after they were anchored."""
    audit.record(store, "retry", "secret", {}, datetime.now(UTC))
    assert main(["blocks"]) == 0  # anchors
    rechained(store, [entry for entry in audit.entries(store) if entry.kind != "retry"])


def without_the_entry(store: Store, key: Path) -> None:
    rechained(store, [entry for entry in audit.entries(store) if entry.kind != RESTORED])


def one_more_excused(store: Store, key: Path) -> None:
    restore = Restore.model_validate(entry_of(store).detail)
    more = (restore.log, 99, "0" * 64)
    changed(lost=[*restore.model_dump(mode="json")["lost"], more])(store, key)


def replayed_on_another_log(store: Store, key: Path) -> None:
    entries = list(audit.entries(store))
    rechained(store, [entries[0].model_copy(update={"subject": "2026-01-01"}), *entries[1:]])


TAMPERINGS: dict[str, tuple[Callable[[Store, Path], None], str]] = {
    "signed by a stranger": (signed_by_another, "Nobody of"),
    "no signature": (changed(signature=""), "not to be believed"),
    "a signature of nonsense": (changed(signature="-----BEGIN SSH SIGNATURE-----\nAAAA\n"), "not to be believed"),
    "another reason": (changed(reason="nothing happened"), "is not of this line"),
    "another name": (changed(by="eve@example.org"), "ada@example.org signed it"),
    "one more head excused": (one_more_excused, "is not of this line"),
    "lines of before taken out": (without_an_erasure, "a log that is not this one"),
    "lines of after taken out": (cut_behind_it, "lines are gone from the end"),
    "the same on another log": (replayed_on_another_log, "a log that is not this one"),
    "the entry taken out": (without_the_entry, "another line stood here"),
}


@pytest.mark.parametrize("how", TAMPERINGS)
def test_a_tampering_with_an_acceptance_is_caught(
    how: str, restored: Store, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tamper, words = TAMPERINGS[how]
    tamper(restored, keys["eve"])
    fields = said(capsys)
    assert not fields["intact"] and any(words in flaw for flaw in fields["flaws"]), fields


def test_nobody_accepts_without_a_file_of_signers(
    restored: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AUDIT_SIGNERS")
    assert main([*ACCEPT, "--key", "unused"]) == 2
    assert "Set AUDIT_SIGNERS to a file of names and public keys" in capsys.readouterr().err
    assert any("nobody is named who may sign it" in flaw for flaw in said(capsys)["flaws"])


def test_a_changed_line_is_no_restore(restored: Store, capsys: pytest.CaptureFixture[str]) -> None:
    log = restored.path(audit.LOG)
    log.write_bytes(log.read_bytes().replace(b'"n":2', b'"n":7', 1))
    assert main([*ACCEPT, "--key", "unused"]) == 2
    assert "No backup makes that" in capsys.readouterr().err
