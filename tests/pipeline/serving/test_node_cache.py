"""A node's cache of models: one copy for all who want it, whoever is killed; room by what was used longest ago."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.core.storage import ModelRef, digest_dir
from pipeline.rollout.export import export_model
from pipeline.serving.model_places import CACHE, SIZE, NodeCache, node_cache, on_this_node, origin

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
