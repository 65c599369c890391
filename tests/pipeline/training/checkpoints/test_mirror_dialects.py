"""A mirror in stores that are not AWS's, and with keys that end before the training does."""

from pathlib import Path

import boto3
import pytest
from fsspec.implementations.local import LocalFileSystem

from pipeline.training.checkpoints.manifest import MANIFEST, Origin
from pipeline.training.checkpoints.mirror import Mirror, MirrorFolder
from tests.strict_s3 import strict_s3
from tests.variants import one_and_variants

from .conftest import PLAN, Run

pytestmark = pytest.mark.slow
WAIT_S, FOLDER, ITERATION = 60.0, PLAN[:12], "itr-0123"
DIALECTS = ("batches", "checksums", "versions", "counts", "overload")


def training(folder: Path, uri: str) -> Run:
    return Run(folder, iteration=ITERATION, mirror=uri, keep_last=2, keep_best=0)


def up(run: Run, *steps: int) -> list[bool]:
    """Whether each checkpoint is in the mirror when the next one is saved."""
    return [run.save(step) is not None and run.checkpoints.uploads.drain(WAIT_S) for step in steps]


def keys(bucket: str, s3_endpoint: str) -> set[str]:
    """Of the checkpoints that are there, below the training's folder."""
    listed = boto3.client("s3", endpoint_url=s3_endpoint).list_objects_v2(Bucket=bucket).get("Contents", ())
    return {key for each in listed if (key := each["Key"].partition(f"{FOLDER}/")[2]).startswith("step-")}


@pytest.mark.situation("01-s3-delete-wants-md5", "right")
@pytest.mark.situation("02-s3-put-refuses-checksums", "right")
@pytest.mark.parametrize("refused", one_and_variants([" ".join(DIALECTS), *DIALECTS]))
def test_a_mirror_is_kept_and_cleared_in_any_dialect(
    tmp_path: Path, bucket: str, s3_endpoint: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3://{bucket}/runs"
    with strict_s3(*refused.split()) as (endpoint, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        run = training(tmp_path / "first", uri)
        assert run.newest() is None
        assert up(run, 1, 2, 3, 4) == [True] * 4, run.said
        assert {key[:11] for key in keys(bucket, s3_endpoint)} == {"step-000003", "step-000004"}
        assert training(tmp_path / "second", uri).newest() == "step-000004"
        run.checkpoints.close()
        folder = MirrorFolder(uri, FOLDER)
        folder.close(ITERATION)
        lines = folder.clear()
        assert folder.steps() == [] and keys(bucket, s3_endpoint) == set()
        assert len(lines) == ("versions" in refused) and all("is unknown" in each for each in lines)


def test_a_mirror_that_cannot_clear_loses_no_manifest(
    tmp_path: Path, bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strict_s3("deletion") as (endpoint, refusals):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        run = training(tmp_path, f"s3://{bucket}/runs")
        assert up(run, 1, 2, 3, 4) == [True] * 4
        assert {f"step-{step:06d}/{MANIFEST}" for step in (1, 2, 3, 4)} < keys(bucket, s3_endpoint)
        assert len(run.said) == 2 and "where older ones were not cleared" in run.said[0]
        assert "step-000001, step-000002: s3://" in run.said[1] and "AccessDenied: No. Grant s3:" in run.said[1]
        refusals.what.clear()
        up(run, 5)
        assert {key[:11] for key in keys(bucket, s3_endpoint)} == {"step-000004", "step-000005"}


def test_a_clear_that_is_cut_leaves_what_nobody_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"file://{tmp_path}/mirror"
    run = training(tmp_path / "first", uri)
    up(run, 1)
    mirror, gone = Mirror(uri, Origin(PLAN, 1, ITERATION)), list[str]()

    def cut(self: LocalFileSystem, path: str) -> None:
        if len(gone) == 2:
            raise ConnectionResetError
        gone.append(path)
        Path(path).unlink()

    monkeypatch.setattr(LocalFileSystem, "rm_file", cut)
    assert len(mirror.clear()) == 1
    assert MANIFEST not in gone[0] and MANIFEST in gone[1] and mirror.manifests() == []


@pytest.mark.situation("03-s3-keys-renewed-in-the-file", "right")
def test_keys_that_were_renewed_are_read_anew(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    valid, file = tmp_path / "valid", tmp_path / "credentials"

    def renew(key: str) -> None:
        file.write_text(f"[work]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n")

    renew("KEYONE")
    valid.write_text("KEYONE")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "work")
    with strict_s3(keys=valid) as (endpoint, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        run = training(tmp_path / "first", f"s3://{bucket}/runs")
        assert up(run, 1) == [True]
        valid.write_text("KEYTWO")  # the hour is over
        assert up(run, 2) == [False]
        assert "checkpoint step-000002 is not in the mirror" in run.said[-1]
        assert "ExpiredToken: No. The keys are not valid, or not any more" in run.said[-1]
        with pytest.raises(ConnectionError, match="The keys are not valid"):
            Run(tmp_path / "second", iteration=ITERATION, mirror=f"s3://{bucket}/runs").newest()
        renew("KEYTWO")
        assert up(run, 3) == [True]
        assert training(tmp_path / "third", f"s3://{bucket}/runs").newest() == "step-000003"


@pytest.mark.situation("04-s3-bucket-of-the-mirror-missing", "right")
def test_only_an_empty_prefix_in_a_bucket_begins_at_step_0(tmp_path: Path, bucket: str) -> None:
    assert training(tmp_path / "first", f"s3://{bucket}/runs").newest() is None
    with pytest.raises(ConnectionError, match=r"NoSuchBucket.* correct its name.* Start again when the mirror answers"):
        training(tmp_path / "second", "s3://removed-bucket/runs").newest()
