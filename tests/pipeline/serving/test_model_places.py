"""A model's copy: verified as it comes, resumed where it was cut, whole or not there."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import ModelRef, digest_dir
from pipeline.rollout.export import export_model
from pipeline.serving import model_places
from pipeline.serving.model_places import (
    CACHE,
    SIZE,
    NodeCache,
    copy_model,
    node_cache,
    on_this_node,
    origin,
    partial_folder,
)

BYTES = 5000


@pytest.fixture
def model(tmp_path: Path) -> ModelRef:
    folder = tmp_path / "model"
    (folder / "nested").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "nested" / "weights.safetensors").write_bytes(os.urandom(BYTES))
    (folder / "empty").touch()
    return ModelRef(uri=str(folder), digest=digest_dir(folder))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are fetched."""
    names: list[str] = []
    opened = model_places.opened

    def wrapped(uri: str) -> tuple[Any, str]:
        files, target = opened(uri)
        whole = files.get_file
        files.get_file = lambda place, path: [names.append(place.rpartition("/")[2]), whole(place, path)]
        return files, target

    monkeypatch.setattr(model_places, "opened", wrapped)
    return names


def left(model: ModelRef, target: Path, content: bytes) -> Path:
    """What an earlier try left of the weights."""
    file = partial_folder(target, model.digest) / "nested" / "weights.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return file


def test_a_copy_is_the_model_and_is_made_once(model: ModelRef, tmp_path: Path, asked: list[str]) -> None:
    copy_model(model.uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest
    assert [path.name for path in tmp_path.iterdir() if ".partial-" in path.name] == []
    asked.clear()
    copy_model(model.uri, model.digest, tmp_path / "copy")
    assert asked == []


@pytest.mark.parametrize(
    ("found", "fetched"),
    [
        (lambda whole: whole, 0),
        (lambda whole: whole[: BYTES // 2], 1),
        (lambda whole: b"\0" * (2 * BYTES), 1),
    ],
    ids=["whole", "cut", "too long"],
)
def test_what_an_earlier_try_left_is_kept_where_it_is_whole(
    model: ModelRef, tmp_path: Path, asked: list[str], found: Callable[[bytes], bytes], fetched: int
) -> None:
    left(model, tmp_path / "copy", found((Path(model.uri) / "nested" / "weights.safetensors").read_bytes()))
    (partial_folder(tmp_path / "copy", model.digest) / "stray").write_text("of another model")
    copy_model(model.uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest
    assert asked.count("weights.safetensors") == fetched


def test_other_weights_are_refused(model: ModelRef, tmp_path: Path) -> None:
    (Path(model.uri) / "config.json").write_text("{ }")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "of another model").write_text("half")
    with pytest.raises(ValueError, match="Name the digest"):
        copy_model(model.uri, model.digest, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["of another model"], "until there is a better one"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="There is nothing"):
        copy_model(str(tmp_path / "empty"), model.digest, tmp_path / "copy")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_come_from_a_bucket(model: ModelRef, bucket: str, tmp_path: Path) -> None:
    uri = export_model(model, f"s3://{bucket}", "champion", print).uri
    left(model, tmp_path / "copy", b"half")
    copy_model(uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest


ROOT = Path(__file__).parents[3]
CHUNK = 1 << 12


def made(folder: Path, chunks: int = 4) -> ModelRef:
    folder.mkdir(parents=True)
    for number in range(chunks):
        (folder / f"weights-{number}").write_bytes(os.urandom(CHUNK))
    return ModelRef(uri=str(folder), digest=digest_dir(folder))


class Holder:
    """A process that wants the model."""

    def __init__(self, uri: str, digest: str, cache: Path, *pause: int) -> None:
        command = [sys.executable, "-m", "tests.pipeline.copying", uri, digest, str(cache), *map(str, pause)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines: list[str] = []

    def until(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.strip() == word:
                return
        raise AssertionError(f"it ended before {word!r}: {self.lines}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n" * 9)
        self.process.stdin.flush()

    def waits(self) -> bool:
        """Whether the kernel has it in the queue for a lock."""
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return any(row[1] == "->" and row[5] == str(self.process.pid) for row in rows)


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    result: list[Holder] = []
    yield result
    for holder in result:
        holder.process.kill()
        holder.process.communicate()


@pytest.mark.slow
def test_one_that_waits_goes_on_where_the_first_was_killed(tmp_path: Path, holders: list[Holder]) -> None:
    model, cache = made(tmp_path / "model"), tmp_path / "cache"
    holders.append(first := Holder(model.uri, model.digest, cache, 2))
    first.until("paused")
    holders.append(second := Holder(model.uri, model.digest, cache, 1))
    while not second.waits():
        assert second.process.poll() is None
        os.sched_yield()
    first.process.kill()
    second.until("paused")
    assert not (cache / model.digest).exists()
    second.go_on()
    second.until("held")
    assert digest_dir(cache / model.digest) == model.digest
    assert second.lines.count("paused") == 1, "the whole files of the first were not asked for again"
    assert [" copied to " in line for line in first.lines + second.lines].count(True) == 1


def names(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.is_dir()}


def test_room_is_made_by_what_was_used_longest_ago(tmp_path: Path) -> None:
    models = [made(tmp_path / name) for name in "abc"]
    first, second, third = (model.digest for model in models)
    cache = NodeCache(tmp_path / "cache", 9 * CHUNK)
    for at, model in enumerate((models[0], models[1], models[0])):
        with cache.hold(model):
            pass
        os.utime(cache.folder / f"{model.digest}.lock", (at, at))
    with cache.hold(models[2]):
        assert names(cache.folder) == {first, third}
    with cache.hold(models[1]):
        assert names(cache.folder) == {second, third}


def test_what_is_held_is_not_evicted(tmp_path: Path) -> None:
    held, other = made(tmp_path / "held"), made(tmp_path / "other")
    cache = NodeCache(tmp_path / "cache", 7 * CHUNK)
    with cache.hold(held) as local:
        with pytest.raises(OSError, match="Raise compute"), cache.hold(other):
            pass
        assert digest_dir(Path(local.uri)) == held.digest
    with cache.hold(other):
        assert names(cache.folder) == {other.digest}


def test_a_part_that_nobody_goes_on_with_makes_room(tmp_path: Path) -> None:
    model, cache = made(tmp_path / "model"), NodeCache(tmp_path / "cache", 5 * CHUNK)
    part = cache.folder / ".another.partial-0123"
    part.mkdir(parents=True)
    (part / "weights").write_bytes(b"\0" * 5 * CHUNK)
    with cache.hold(model):
        assert names(cache.folder) == {model.digest}


def test_models_lie_by_digest_below_a_source(tmp_path: Path) -> None:
    model = made(tmp_path / "model")
    root = export_model(model, str(tmp_path / "root"), "m", print).uri.rpartition("/")[0]
    gone = model.model_copy(update={"uri": str(tmp_path / "gone")})
    with NodeCache(tmp_path / "cache", 5 * CHUNK, root).hold(gone) as local:
        assert digest_dir(Path(local.uri)) == model.digest
        assert origin(local.uri) == gone.uri, "what is written down names a place that others have"


def test_the_cache_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(tmp_path / "model")
    with on_this_node(model) as local:
        assert local == model
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=f"{SIZE} is ''"):
        node_cache(os.environ)
    monkeypatch.setenv(SIZE, "1")
    with ExitStack() as kept:
        assert kept.enter_context(on_this_node(model)).uri == str(tmp_path / "cache" / model.digest)
