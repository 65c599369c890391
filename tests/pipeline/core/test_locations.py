"""References: absolute in memory, relative to the record's own file on disk."""

import shutil
from pathlib import Path

import pytest

from pipeline.core.locations import Document, record_of_iteration, resolved, stored
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Record, Store
from pipeline.recipe import Recipe, load


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
