"""Stores that are tried before a run: each dialect, what is wrong with one, and that nothing of a try stays."""

from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
from werkzeug.serving import make_ssl_devcert

from pipeline.places.stores import lake_fault, read_fault, write_fault
from pipeline.traces.lake_config import LakeConfig
from tests.strict_s3 import strict_s3
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow
DIALECTS = ("batches", "checksums", "versions", "counts", "overload")


def lake(bucket: str, endpoint: str) -> LakeConfig:
    return LakeConfig(catalogue="rest", warehouse=f"s3://{bucket}/lake", properties={"s3.endpoint": endpoint})


def left(bucket: str, endpoint: str) -> list[str]:
    """Objects, their versions and open uploads."""
    s3: Any = boto3.client("s3", endpoint_url=endpoint)
    versions, uploads = s3.list_object_versions(Bucket=bucket), s3.list_multipart_uploads(Bucket=bucket)
    listed = [*versions.get("Versions", ()), *versions.get("DeleteMarkers", ()), *uploads.get("Uploads", ())]
    return [each["Key"] for each in listed]


@pytest.mark.parametrize("refused", one_and_variants([" ".join(DIALECTS), *DIALECTS, ""]))
def test_a_store_of_another_dialect_is_fine(
    refused: str, bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not refused:
        boto3.client("s3").put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with strict_s3(*refused.split()) as (endpoint, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert (write_fault(f"s3://{bucket}/a"), lake_fault(lake(bucket, endpoint))) == ("", "")
    assert left(bucket, s3_endpoint) == []


def test_what_a_store_does_not_let_us_is_named(bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"s3://{bucket}/a"
    with strict_s3("deletion") as (endpoint, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        fault = write_fault(uri)
        (stays,) = left(bucket, s3_endpoint)
        assert fault.startswith(f"{uri} cannot be used: AccessDenied: No. Grant ")
        assert fault.endswith(f" The try could not delete {bucket}/{stays}.")
    with strict_s3("regions") as (endpoint, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        for found in (write_fault(uri), read_fault(uri), lake_fault(lake(bucket, endpoint))):
            assert "AuthorizationHeaderMalformed" in found and "set AWS_DEFAULT_REGION" in found
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    for found in (write_fault("s3://no-such-bucket/a"), lake_fault(lake("no-such-bucket", s3_endpoint))):
        assert "There is no such bucket" in found


def test_a_source_is_read_by_one_object(bucket: str) -> None:
    s3: Any = boto3.client("s3")
    assert "NoSuchBucket" in read_fault("s3://no-such-bucket/a")
    s3.put_object(Bucket=bucket, Key="a/folder/", Body=b"")
    s3.put_object(Bucket=bucket, Key="a-sibling.jsonl", Body=b"{}")
    assert read_fault(f"s3://{bucket}/a") == f"s3://{bucket}/a holds no object. Correct it, or export there first."
    s3.put_object(Bucket=bucket, Key="a/folder/1.jsonl", Body=b"{}")
    assert read_fault(f"s3://{bucket}/a") == read_fault(f"s3://{bucket}/a-sibling.jsonl") == ""


def test_arrow_takes_the_profiles_region_and_authorities(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "config"
    certificate, key = make_ssl_devcert(str(tmp_path / "store"), host="localhost")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profile))
    with strict_s3("regions", tls=(certificate, key)) as (endpoint, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
        profile.write_text("[default]\nregion = eu-central-1\n")
        assert "Set AWS_CA_BUNDLE" in lake_fault(lake(bucket, endpoint))
        monkeypatch.setenv("AWS_CA_BUNDLE", certificate)
        assert (lake_fault(lake(bucket, endpoint)), write_fault(f"s3://{bucket}/a")) == ("", "")
        profile.write_text("[default]\nregion = eu-west-1\n")
        assert "AWS_DEFAULT_REGION" in lake_fault(lake(bucket, endpoint))


def test_a_store_that_is_not_s3_is_tried_the_same_way() -> None:
    assert write_fault("memory://models/tuned") == ""
    assert fsspec.filesystem("memory").find("/models") == []
    assert "holds no object" in read_fault("memory://models/tuned")
    fsspec.filesystem("memory").pipe("/models/tuned/1.jsonl", b"{}")
    assert read_fault("memory://models/tuned") == read_fault("memory://models/tuned/1.jsonl") == ""
    assert "Install its driver" in write_fault("carrier-pigeon://loft")
