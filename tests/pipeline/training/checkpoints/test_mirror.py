"""The mirror on a real S3 protocol, and on a file system where that says the same faster."""

import json
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import boto3
import pytest
from fsspec.implementations.local import LocalFileSystem

from pipeline.core.storage import Store
from pipeline.training.checkpoints.manifest import MANIFEST, Origin, read
from pipeline.training.checkpoints.mirror import CLAIM, Mirror, MirrorPlace, place_of, places_of, remember

from ....servers import unsteady
from .conftest import FILES, HARMS, PLAN, STATE, WEIGHTS, Run, is_whole, trained

TIMEOUT_S = 60.0


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """Where the mirror of the plan lies, on a file system."""
    return tmp_path / "mirror" / PLAN[:12]


@pytest.fixture
def uri(mirror: Path) -> str:
    return f"file://{mirror.parent}"


def attempt(folder: Path, uri: str, **settings: object) -> Run:
    return Run(folder, mirror=uri, **settings)


def up(run: Run, step: int, score: float | None = None) -> Path:
    folder = run.save(step, score)
    assert run.checkpoints.uploads.drain(TIMEOUT_S), run.said
    return folder


@pytest.mark.slow
def test_a_node_without_its_disk_resumes_from_s3(tmp_path: Path, bucket: str) -> None:
    first = attempt(tmp_path / "first", f"s3://{bucket}/runs", keep_last=2, keep_best=1)
    for step, score in ((5, 0.9), (10, 0.2), (15, 0.3), (20, 0.1)):
        up(first, step, score)
    second = attempt(tmp_path / "second", f"s3://{bucket}/runs")
    assert second.newest() == "step-000020"
    assert is_whole(second.root / "step-000020")
    for name in (*FILES, MANIFEST):
        assert (second.root / "step-000020" / name).read_bytes() == (first.root / "step-000020" / name).read_bytes()
    assert second.best() == "step-000005"
    assert second.there() == ["step-000005", "step-000020"]
    assert (first.said, second.said) == ([], [])
    keys = boto3.client("s3").list_objects_v2(Bucket=bucket)["Contents"]
    folders = {key["Key"].removeprefix(f"runs/{PLAN[:12]}/").split("/")[0] for key in keys}
    assert folders == {"step-000005", "step-000015", "step-000020", CLAIM}


def test_the_mirror_heals_the_disk(tmp_path: Path, uri: str) -> None:
    run = attempt(tmp_path, uri)
    assert run.newest() is None
    HARMS["flip"](up(run, 5) / STATE)
    assert run.newest() == "step-000005"
    assert is_whole(run.root / "step-000005")
    assert [line for line in run.said if STATE in line] == run.said != []
    up(run, 10)
    assert run.there() == ["step-000005", "step-000010"], "what was healed has its place at the next commit"


@pytest.mark.parametrize(("name", "harm"), [(STATE, "flip"), (WEIGHTS, "remove"), (MANIFEST, "truncate")])
def test_damaged_checkpoint_of_the_mirror_is_passed_over(
    tmp_path: Path, uri: str, mirror: Path, name: str, harm: str
) -> None:
    first = attempt(tmp_path / "first", uri)
    up(first, 5)
    up(first, 10)
    HARMS[harm](mirror / "step-000010" / name)
    second = attempt(tmp_path / "second", uri)
    assert second.newest() == "step-000005"
    assert second.there() == ["step-000005"]
    assert len(second.said) == 1
    assert "step-000010 in the mirror is passed over" in second.said[0]
    assert name in second.said[0]


def test_a_cut_upload_is_never_trusted_and_is_cleared(tmp_path: Path, uri: str, mirror: Path) -> None:
    first = attempt(tmp_path / "first", uri)
    up(first, 5)
    trained(mirror / "step-000007", 7)
    trained(mirror / "step-000020", 20)
    second = attempt(tmp_path / "second", uri)
    assert second.newest() == "step-000005"
    assert [line for line in second.said if "its upload was cut" in line] == second.said
    assert len(second.said) == 2
    up(second, 10)
    assert sorted(path.name for path in mirror.glob("step-*")) == ["step-000005", "step-000010", "step-000020"]
    up(second, 20)
    assert is_whole(mirror / "step-000020")


def test_upload_that_a_kill_left_out_happens_at_the_next_start(tmp_path: Path, uri: str, mirror: Path) -> None:
    Run(tmp_path).save(5)  # without a mirror: as good as killed before the upload
    run = attempt(tmp_path, uri)
    run.newest()
    assert run.checkpoints.uploads.drain(TIMEOUT_S)
    assert is_whole(mirror / "step-000005")
    up_since = (mirror / "step-000005" / MANIFEST).stat().st_mtime_ns
    later = attempt(tmp_path, uri)
    later.newest()
    assert later.checkpoints.uploads.drain(TIMEOUT_S)
    assert (mirror / "step-000005" / MANIFEST).stat().st_mtime_ns == up_since, "it is not uploaded again"


@pytest.mark.parametrize(
    ("uri", "place"),
    [("s3://bucket/runs", "s3://bucket/runs"), ("file:///runs", "/runs"), ("runs", str(Path("runs").absolute()))],
)
def test_a_place_is_on_record_once_by_its_whole_address(tmp_path: Path, uri: str, place: str) -> None:
    store, other = Store(tmp_path), MirrorPlace(uri="/other", folder="f")
    assert places_of(store, "i") == ()
    for each in (other, place_of(uri, PLAN), other):
        remember(store, "i", each)
    assert places_of(store, "i") == (other, MirrorPlace(uri=place, folder=PLAN[:12]))


@pytest.fixture
def silent(bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mirror that answers every request for an object or a listing with 500."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with unsteady(s3_endpoint, repeat("500")) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield f"s3://{bucket}/runs"


@pytest.mark.slow
def test_silent_mirror_stops_no_training_with_a_checkpoint(tmp_path: Path, silent: str) -> None:
    Run(tmp_path).save(5)
    run = attempt(tmp_path, silent)
    assert run.newest() == "step-000005"
    run.save(10)
    assert run.there() == ["step-000005", "step-000010"]
    assert not run.checkpoints.uploads.drain(TIMEOUT_S)
    said = "\n".join(run.said)
    assert f"the mirror {silent} does not answer" in said
    assert "checkpoint step-000010 is not in the mirror, and the next one tries again: " in said
    assert "500" in said or "InternalError" in said


@pytest.mark.slow
def test_training_does_not_begin_while_the_mirror_is_silent(tmp_path: Path, silent: str) -> None:
    with pytest.raises(ConnectionError, match=r"no checkpoint in .* does not answer: .*Start again when"):
        attempt(tmp_path, silent).newest()


def test_an_unknown_kind_of_mirror_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"carrier-pigeon://loft cannot be opened: .*Install its driver"):
        attempt(tmp_path, "carrier-pigeon://loft")


def claimed(mirror: Path) -> str:
    return json.loads((mirror / CLAIM).read_text())["id"]


def test_of_two_attempts_the_later_one_writes(tmp_path: Path, uri: str, mirror: Path) -> None:
    first = attempt(tmp_path / "first", uri)
    up(first, 5)
    earlier = claimed(mirror)
    second = attempt(tmp_path / "second", uri)
    second.newest()
    up(second, 10)
    assert claimed(mirror) != earlier
    first.save(20)
    assert not first.checkpoints.uploads.drain(TIMEOUT_S)
    first.save(25)
    assert not first.checkpoints.uploads.drain(TIMEOUT_S)
    assert first.said == [f"another attempt writes to the mirror {uri} now: this one uploads no more"]
    up(second, 15)
    assert sorted(path.name for path in mirror.glob("step-*")) == ["step-000010", "step-000015"]


def test_attempt_overtaken_before_its_manifest_publishes_none(
    tmp_path: Path, uri: str, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, origin = Run(tmp_path).save(5), Origin(PLAN, 1)
    first, second = Mirror(uri, origin), Mirror(uri, origin)
    first.claim()
    put = LocalFileSystem.put_file

    def overtaken(self: LocalFileSystem, *args: object, **options: object) -> None:
        put(self, *args, **options)
        second.claim()

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "put_file", overtaken)
        assert not first.put(folder, read(folder, origin))
    assert not (mirror / "step-000005" / MANIFEST).exists()
    assert second.put(folder, read(folder, origin))
    assert is_whole(mirror / "step-000005")


def test_checkpoint_whose_files_change_is_not_trusted(
    tmp_path: Path, uri: str, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(attempt(tmp_path / "first", uri), 5)
    folder = Run(tmp_path / "second").save(5, 0.5)  # the same step again

    def cut(*args: object, **options: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(LocalFileSystem, "put_file", cut)
    with pytest.raises(ConnectionResetError):
        Mirror(uri, Origin(PLAN, 1)).put(folder, read(folder, Origin(PLAN, 1)))
    assert not (mirror / "step-000005" / MANIFEST).exists()


@pytest.mark.parametrize("left", [b'{"attempt":', None])
def test_a_claim_that_was_lost_is_made_again(tmp_path: Path, uri: str, mirror: Path, left: bytes | None) -> None:
    run = attempt(tmp_path, uri)
    up(run, 5)
    own = claimed(mirror)
    (mirror / CLAIM).unlink() if left is None else (mirror / CLAIM).write_bytes(left)
    up(run, 10)
    assert claimed(mirror) == own
