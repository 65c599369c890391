import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.locations import Document, record_of_iteration, resolved, stored
from pipeline.core.storage import (
    CheckpointRef,
    DatasetRef,
    ModelRef,
    Record,
    Store,
    digest_dir,
    digest_json,
    sweep_unfinished,
    unfinished_name,
    write_atomically,
)
from pipeline.recipe import Recipe, load


class Fact(Record):
    value: int


def test_create_has_one_winner_among_many(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: store.create("a/fact.json", Fact(value=n)), range(32)))
    assert sum(won) == 1
    assert store.read("a/fact.json", Fact) == Fact(value=won.index(True))
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["fact.json"]


def test_once_makes_a_record_once(tmp_path: Path) -> None:
    store, result = Store(tmp_path), []

    def make() -> Fact:
        result.append(1)
        return Fact(value=len(result))

    assert store.once("f.json", Fact, make) == store.once("f.json", Fact, make) == Fact(value=1)


def test_staged_publishes_all_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError), store.staged("out") as staging:
        (staging / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with store.staged("out") as staging:
        (staging / "whole").write_text("x")
    assert (tmp_path / "out" / "whole").read_text() == "x"


def test_staged_leaves_the_first_attempt_standing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for content in ("first", "second"):
        with store.staged("out") as staging:
            (staging / "file").write_text(content)
    assert (tmp_path / "out" / "file").read_text() == "first"


def test_an_unreadable_record_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"value": ')
    with pytest.raises(ValueError, match="Move it away"):
        Store(tmp_path).read("f.json", Fact)


def test_a_remote_root_is_refused() -> None:
    with pytest.raises(ValueError, match="give a path"):
        Store("s3://bucket/root")


def test_digest_follows_content_not_order_or_place(tmp_path: Path) -> None:
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "file").write_text("same")
    assert digest_dir(tmp_path / "one") == digest_dir(tmp_path / "two")
    (tmp_path / "two" / "sub" / "file").write_text("other")
    assert digest_dir(tmp_path / "one") != digest_dir(tmp_path / "two")


@pytest.mark.slow
def test_a_killed_writer_leaves_no_half_record(tmp_path: Path) -> None:
    code = (
        "from pipeline.core.storage import Store, DatasetRef\n"
        f"store = Store({str(tmp_path)!r})\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    store.write('ref.json', DatasetRef(uri='x' * 100_000, rows=n, digest=str(n)))\n"
        "    print(n, flush=True)\n"
    )
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(7):
                writer.stdout.readline()
            writer.kill()
        result = Store(tmp_path).read("ref.json", DatasetRef)
        assert result is not None
        assert result.digest == str(result.rows)
        assert (tmp_path / "ref.json").stat().st_size > 100_000


def test_locks_are_taken_as_a_network_file_system_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flock(2): on NFS a shared lock needs a file opened for reading, an exclusive one a file opened for writing."""
    flock = fcntl.flock

    def strict(descriptor: Any, how: int) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        needed = os.O_WRONLY if how & fcntl.LOCK_EX else os.O_RDONLY
        if stat.S_ISREG(os.fstat(number).st_mode) and mode not in (needed, os.O_RDWR):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", strict)
    write_atomically(tmp_path / "a.json", "{}")
    left = unfinished_name(tmp_path / "b.json")
    left.write_text("{")
    assert sweep_unfinished(tmp_path) == [left]


class Note(Record):
    text: str
    where: DatasetRef


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("/data/iterations/a/model", "relative:../../iterations/a/model"),
        ("/data/rollout/m/x", "relative:x"),
        ("/data/rollout/m", "relative:."),
        ("/data", "relative:../.."),
        ("file:///data/lake/governed", "relative:file://../../lake/governed"),
        ("/database/model", "/database/model"),
        ("/models/base", "/models/base"),
        ("s3://data/model", "s3://data/model"),
        ("models/base", "models/base"),
        ("../base", "../base"),
        ("", ""),
    ],
)
def test_what_lies_under_the_root_is_stored_relative(uri: str, text: str) -> None:
    document = Document(Path("/data/rollout/m/router.json"), Path("/data"))
    assert stored(uri, document) == text
    assert resolved(text, Document(document.path)) == uri


def test_a_root_with_dots_and_links_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    for root in (tmp_path / "link" / ".." / "data", tmp_path / "link" / "data"):
        store = Store(root)
        kept = ModelRef(uri=str(store.path("iterations", "a", "model")), digest="d")
        store.write("rollout/m/events/000001.json", kept)
        assert store.read("rollout/m/events/000001.json", ModelRef) == kept


def test_a_moved_record_points_to_where_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path / "old")
    models = (ModelRef(uri=str(store.path(name)), digest=name) for name in ("a/adapter", "a/model"))
    store.write("b/result.json", CheckpointRef(**dict(zip(("adapter", "model"), models, strict=True)), step=1))
    assert str(tmp_path) not in store.path("b", "result.json").read_text()
    shutil.move(tmp_path / "old", tmp_path / "new")
    moved = Store(tmp_path / "new").read("b/result.json", CheckpointRef)
    assert moved is not None
    assert [moved.adapter.uri, moved.model.uri] == [str(tmp_path / "new" / "a" / n) for n in ("adapter", "model")]


def test_free_text_is_never_altered(tmp_path: Path) -> None:
    store = Store(tmp_path)
    text = f"relative:../x and {tmp_path}/y and file://{tmp_path}/z"
    note = Note(text=text, where=DatasetRef(uri=f"{tmp_path}/y", rows=1, digest="d"))
    store.write("note.json", note)
    assert store.read("note.json", Note) == note
    assert store.path("note.json").read_text().count(str(tmp_path)) == 2


def test_the_root_is_told_by_a_path_below_iterations() -> None:
    path = Path("/iterations/data/iterations/0123/training/plan.json")
    assert record_of_iteration(path) == Document(path, Path("/iterations/data"))
    assert record_of_iteration(Path("/srv/plan.json")) == Document(Path("/srv/plan.json"), Path("/srv"))


def test_a_recipe_that_is_kept_in_the_root_moves_with_it(tmp_path: Path) -> None:
    path = Path(__file__).parents[3] / "jobs" / "recipes" / "embedded.yaml"
    recipe = load(path, [f"data_root={tmp_path}/old", f"base_model.uri={tmp_path}/old/models/base"])
    Store(tmp_path / "old").write("iterations/a/recipe.json", recipe)
    assert str(tmp_path) not in (tmp_path / "old" / "iterations" / "a" / "recipe.json").read_text()
    (tmp_path / "old").rename(tmp_path / "new")
    moved = Store(tmp_path / "new").read("iterations/a/recipe.json", Recipe)
    assert moved is not None
    assert (moved.data_root, moved.base_model.uri) == (f"{tmp_path}/new", f"{tmp_path}/new/models/base")
    assert moved.digest() == recipe.digest()
