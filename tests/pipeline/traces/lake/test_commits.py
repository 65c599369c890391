import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.traces.lake import DayReplaced, LakeConfig, local_lake, open_lake
from pipeline.traces.lake.files import path_of

from ....variants import one_and_variants
from .lakes import DAY, NEXT_DAY, ids, of, postgres_lake, put, python, row, written

pytestmark = pytest.mark.slow


@pytest.fixture(params=one_and_variants(["sqlite", "postgres"]))
def config(request: pytest.FixtureRequest, tmp_path: Path) -> LakeConfig:
    if request.param == "sqlite":
        return local_lake(Store(tmp_path))
    return postgres_lake(request.getfixturevalue("postgres_url"), tmp_path)


def test_the_loser_of_another_day_commits_after_the_winner(config: LakeConfig) -> None:
    with open_lake(config) as one, open_lake(config) as two:
        put(one, config, DAY, [row(1)], "a")
        put(two, config, NEXT_DAY, [row(2, NEXT_DAY)], "b")
        put(one, config, DAY, [row(3)], "c")
        two.erase(of("nobody"), {NEXT_DAY: "d"})
        one.expire(None)
        assert ids(one, DAY, NEXT_DAY) == ["t3", "t2"]
        assert one.digests() == {DAY: "c", NEXT_DAY: "d"}


def test_the_loser_of_the_same_day_is_told_to_run_again(config: LakeConfig) -> None:
    with open_lake(config) as one, open_lake(config) as two, open_lake(config) as same:
        put(one, config, DAY, [row(1)], "a")
        with pytest.raises(DayReplaced, match=rf"replaced {DAY}.*run again"):
            put(two, config, DAY, [row(2)], "b")
        put(two, config, NEXT_DAY, [row(2, NEXT_DAY)], "other")
        with pytest.raises(DayReplaced):  # still: it stands on what it saw when it opened the lake
            put(two, config, DAY, [row(2)], "b")
        with pytest.raises(DayReplaced):
            two.drop_days([DAY])
        put(same, config, DAY, [row(1)], "a")
        assert (ids(same, DAY), len(same.files([DAY], same.snapshot))) == (["t1"], 1)
    with open_lake(config) as again:
        put(again, config, DAY, [row(3)], "b")
        assert ids(again, DAY) == ["t3"]


def test_erasure_joins_other_days_and_yields_to_the_same_day(config: LakeConfig) -> None:
    with open_lake(config) as setup:
        put(setup, config, DAY, [row(1, user_id="x"), row(2)], "a")
    with open_lake(config) as eraser, open_lake(config) as writer:
        put(writer, config, NEXT_DAY, [row(3, NEXT_DAY, user_id="x"), row(4, NEXT_DAY)], "b")
        eraser.erase(of("x"), {DAY: "a2"})
        assert ids(eraser, DAY, NEXT_DAY) == ["t2", "t4"]
        with pytest.raises(DayReplaced):
            put(writer, config, DAY, [row(5, user_id="x")], "c")
    with open_lake(config) as eraser, open_lake(config) as writer:
        put(writer, config, DAY, [row(6, user_id="x")], "d")
        with pytest.raises(DayReplaced):
            eraser.erase(of("x"), {DAY: "e"})
        assert ids(writer, DAY) == ["t6"]


def test_a_commit_whose_answer_was_lost_is_not_made_twice(config: LakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    with open_lake(config) as lake:
        commit: Callable[..., object] = lake._table.catalog.commit_table

        def lost(*arguments: object) -> object:
            commit(*arguments)
            raise OperationalError("update", {}, Exception("server closed the connection"))

        monkeypatch.setattr(lake._table.catalog, "commit_table", lost)
        files = written(config, DAY, [row(1)])
        lake.replace_day(DAY, files, "a")
        assert (ids(lake, DAY), len(lake._table.snapshots())) == (["t1"], 1)


HAMMER = """
from pipeline.traces.lake import DayReplaced, open_lake
config, mine = LakeConfig.model_validate_json(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
won = lost = 0
for n in range(4):
    with open_lake(config) as lake:
        put(lake, config, "2026-02-" + mine, [row(n, "2026-02-" + mine, source_file=mine)] * 3, f"{mine}.{n}")
        try:
            put(lake, config, DAY, [row(n, source_file=f"{mine}.{n}")] * 3, f"{mine}.{n}")
            won += 1
        except DayReplaced:
            lost += 1
print(won, lost, flush=True)
"""


def test_two_processes_that_commit_at_once_leave_whole_days(config: LakeConfig) -> None:
    """Both create the table, each has a day of its own whose every commit must stand, and both fight for one; a third
    reads all the while."""
    hammers = [python(HAMMER, config.model_dump_json(), mine) for mine in ("01", "02")]
    for process in hammers:
        assert process.stdout is not None and process.stdout.readline() == "ready\n", process.stderr
    for process in hammers:
        assert process.stdin is not None
        print("go", file=process.stdin, flush=True)
    seen = set[str]()
    while any(process.poll() is None for process in hammers):
        with open_lake(config) as lake:
            rows = lake.read([DAY], lake.snapshot, ["source_file"])["source_file"].to_pylist()
            assert len(rows) in (0, 3) and len(set(rows)) <= 1, "a day was seen half"
            assert lake.digests().get(DAY) == (rows[0] if rows else None)
            seen.update(rows)
    results = [process.communicate() for process in hammers]
    assert all(process.returncode == 0 for process in hammers), results
    counts = [tuple(map(int, out.split())) for out, _ in results]
    assert all(won + lost == 4 for won, lost in counts) and any(won for won, _ in counts) and seen
    with open_lake(config) as lake:
        created = [s.summary["traces.day"] for s in lake._table.snapshots() if s.summary]
        assert (created.count("2026-02-01"), created.count("2026-02-02")) == (4, 4)
        assert created.count(DAY) == sum(won for won, _ in counts)
        assert lake.digests()["2026-02-01"] == "01.3" and lake.digests()["2026-02-02"] == "02.3"
        assert ids(lake, "2026-02-01") == ["t3"] * 3


KILLED = """
import os
from pipeline.traces.lake import open_lake
config = LakeConfig.model_validate_json(sys.argv[1])
with open_lake(config) as lake:
    commit = lake._table.catalog._write_metadata
    def stop(*args, **kwargs):
        commit(*args, **kwargs)
        print("now", flush=True); sys.stdin.readline()
    lake._table.catalog._write_metadata = stop
    put(lake, config, DAY, [row(8), row(9)], "killed")
"""


def test_a_killed_commit_is_never_seen_and_its_files_are_swept(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
    folder = Path(path_of(config.location))
    before = set(folder.rglob("*"))
    process = python(KILLED, config.model_dump_json())
    assert process.stdout is not None and process.stdout.readline() == "now\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    left = {path for path in set(folder.rglob("*")) - before if path.is_file()}
    assert left
    with open_lake(config) as lake:
        assert (ids(lake, DAY), lake.digests()) == (["t1"], {DAY: "a"})
        assert lake.sweep(3600).files == 0
        assert lake.sweep(0).files == len(left)
        assert set(folder.rglob("*")) == before
        put(lake, config, DAY, [row(2)], "b")
        assert ids(lake, DAY) == ["t2"]
