"""The key of marks: where it comes from, and what is refused."""

import multiprocessing
from pathlib import Path

import pytest

from pipeline.core.mark_keys import MarkKey, MarkKeys, key_of
from pipeline.core.storage import Store
from pipeline.traces.erased import ErasedUser, add, bind, exclusive_lock, forgotten, shared_lock, user_hash

ANN = user_hash("ann@example.com")


def test_a_mark_says_its_key_and_not_its_user() -> None:
    key, other = MarkKey(b"o" * 32), MarkKey(b"n" * 32)
    assert key_of(key.mark(ANN)) == key.id and ANN not in key.mark(ANN)
    assert len({key.mark(ANN), key.mark(user_hash("bob")), other.mark(ANN)}) == 3
    assert (b"o" * 32).hex() not in repr(key) and "oooo" not in repr(key)


@pytest.mark.slow
def test_a_key_file_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file, root = tmp_path / "config" / "mark-keys", tmp_path / "data"
    with pytest.raises(ValueError, match=r"cannot be read or kept in .*mark-keys"):
        MarkKeys(file=file, is_made=True).key(root)
    assert not file.exists(), "where marks are already, no other key is made"
    with multiprocessing.get_context("spawn").Pool(2) as pool:  # a fork of a process that runs Ray's threads may hang
        ids = pool.starmap(_made, [(file, root)] * 8)
    assert len(set(ids)) == 1
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["mark-keys"]


def _made(file: Path, root: Path) -> str:
    return MarkKeys(file=file, is_made=True).key(root, new=True).id


def test_keys_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(ValueError, match="inside the data root"):
        MarkKeys(file=root / "mark-keys", is_made=True).key(root, new=True)
    with pytest.raises(ValueError, match="No such file"):
        MarkKeys(file=tmp_path / "named").key(root, new=True)
    for given in ("not hexadecimal", "ab" * 8, f"{'ab' * 32} {'cd' * 32}"):
        with pytest.raises(ValueError, match="openssl rand -hex 32"):
            MarkKeys(given).key(root)
    (tmp_path / "home").touch()
    with pytest.raises(ValueError, match=r"home/mark-keys .* name that by PREFERENCE_TUNING_MARK_KEY_FILE"):
        MarkKeys(file=tmp_path / "home" / "mark-keys", is_made=True).key(root, new=True)
    with pytest.raises(ValueError, match="without it no forgotten user"):
        MarkKeys().key(root)


def test_another_key_lets_nobody_read(tmp_path: Path) -> None:
    store, file = Store(tmp_path / "data", MarkKeys("ab" * 32)), tmp_path / "data"
    with exclusive_lock(store):
        add(store, ErasedUser(mark=bind(store).mark(user_hash("ann")), proof="p"))
    assert forgotten(store).entry("ann") is not None and forgotten(store).entry("Ann") is None
    with (
        pytest.raises(ValueError, match="1 forgotten users would not be recognised, so no row is read"),
        shared_lock(Store(file, MarkKeys("cd" * 32))),
    ):
        pass
