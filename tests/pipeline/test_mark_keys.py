"""Keys of marks: where they come from, what they refuse, and that a mark can be raised by who knows no user."""

import multiprocessing
from pathlib import Path

import pytest

from pipeline.mark_keys import KeyChain, MarkKeys, key_of
from pipeline.traces.erased import user_hash

ANN = user_hash("ann@example.com")
OLD, NEW = b"o" * 32, b"n" * 32


def test_a_mark_says_its_key_and_not_its_user() -> None:
    chain = KeyChain((OLD, NEW))
    marks = chain.marks(ANN)
    assert [key_of(mark) for mark in marks] == ["", *chain.ids]
    assert len(set(marks)) == 3 and ANN not in "".join(marks[1:])
    assert chain.mark(user_hash("bob")) not in marks
    assert OLD.hex() not in repr(chain) and "oooo" not in repr(chain)


def test_a_mark_is_raised_without_knowing_its_user() -> None:
    before, after = KeyChain((OLD,)), KeyChain((OLD, NEW))
    assert after.raised(before.mark(ANN)) == after.raised(ANN) == after.mark(ANN)
    assert after.raised(after.mark(ANN)) == after.mark(ANN)
    assert before.mark(ANN) in after.marks(ANN), "the old key still recognises"
    stranger = KeyChain((NEW,)).mark(ANN)
    assert after.raised(stranger) == stranger


@pytest.mark.parametrize("keys", [(OLD,), (NEW,), (NEW, OLD)])
def test_a_part_of_the_keys_recognises_nobody(keys: tuple[bytes, ...]) -> None:
    assert KeyChain((OLD, NEW)).mark(ANN) not in KeyChain(keys).marks(ANN)


@pytest.mark.slow
def test_a_key_file_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file, root = tmp_path / "config" / "mark-keys", tmp_path / "data"
    with pytest.raises(ValueError, match=r"There is no .*mark-keys"):
        MarkKeys(file=file, is_made=True).chain(root)
    assert not file.exists(), "where marks are already, no other key is made"
    with multiprocessing.get_context("spawn").Pool(2) as pool:  # a fork of a process that runs Ray's threads may hang
        ids = pool.starmap(_newest, [(file, root)] * 8)
    assert len(set(ids)) == 1
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["mark-keys"]


def _newest(file: Path, root: Path) -> str:
    return MarkKeys(file=file, is_made=True).chain(root, new=True).newest


def test_an_added_key_is_the_newest(tmp_path: Path) -> None:
    keys = MarkKeys(file=tmp_path / "mark-keys", is_made=True)
    before = keys.chain(tmp_path / "data", new=True)
    keys.add()
    after = keys.chain(tmp_path / "data")
    assert after.keys[:1] == before.keys and len(after.keys) == 2
    assert (tmp_path / "mark-keys").stat().st_mode & 0o777 == 0o600


def test_keys_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    inside = MarkKeys(file=root / "mark-keys", is_made=True)
    with pytest.raises(ValueError, match="inside the data root"):
        inside.chain(root, new=True)
    with pytest.raises(ValueError, match="There is no"):
        MarkKeys(file=tmp_path / "named").chain(root, new=True)
    for given in ("not hexadecimal", "ab" * 8):
        with pytest.raises(ValueError, match="openssl rand -hex 32"):
            MarkKeys(given).chain(root)
    with pytest.raises(ValueError, match="without the keys"):
        MarkKeys().chain(root)
    with pytest.raises(ValueError, match="add the new one there"):
        MarkKeys("ab" * 32).add()
