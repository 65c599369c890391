"""Anchors on moto's S3 server: locked, read in every version, and refused where a bucket protects nothing."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from pipeline.anchor_bucket import RETAINED, AnchorBucket, UnlockedBucket
from pipeline.audit_anchors import Anchor, AnchoredHead, HeadToAnchor

NOW = datetime.now(UTC)


def head(n: int) -> HeadToAnchor:
    return HeadToAnchor("f" * 64, AnchoredHead(n=n, digest=f"{n:064d}"), ())


@pytest.fixture
def locked(bucket: str) -> str:
    """A bucket with object lock and no rule of its own."""
    boto3.client("s3").create_bucket(Bucket=f"{bucket}-locked", ObjectLockEnabledForBucket=True)
    return f"{bucket}-locked"


def test_an_anchor_comes_back_and_cannot_be_deleted(locked: str) -> None:
    place, client = AnchorBucket(f"s3://{locked}/deployment"), boto3.client("s3")
    for n in (1, 2):
        place.put("/srv/data", head(n), NOW)
    place.put("/srv/copy", head(3), NOW)
    AnchorBucket(f"s3://{locked}/another").put("/srv/data", head(9), NOW)
    here = [each for each in place.anchors("/srv/data") if each.root == "/srv/data"]
    assert {(each.n, each.digest, each.log, each.place) for each in here} == {
        (n, f"{n:064d}", "f" * 64, f"s3://{locked}/deployment") for n in (1, 2)
    }
    assert {each.n for each in place.anchors("/srv/data")} == {1, 2, 3}
    for version in client.list_object_versions(Bucket=locked)["Versions"]:
        kept = client.head_object(Bucket=locked, Key=version["Key"])
        assert kept["ObjectLockMode"] == "COMPLIANCE"
        assert abs(kept["ObjectLockRetainUntilDate"] - (NOW + RETAINED)) < timedelta(seconds=2)
        with pytest.raises(ClientError, match="AccessDenied"):
            client.delete_object(
                Bucket=locked, Key=version["Key"], VersionId=version["VersionId"], BypassGovernanceRetention=True
            )


def hidden(client: Any, name: str, key: str) -> None:
    client.delete_object(Bucket=name, Key=key)


def replaced(client: Any, name: str, key: str) -> None:
    client.put_object(Bucket=name, Key=key, Body=b"{}")


@pytest.mark.parametrize("tamper", [hidden, replaced])
def test_an_anchor_that_was_hidden_still_counts(tamper: Callable[[Any, str, str], None], locked: str) -> None:
    place, client = AnchorBucket(f"s3://{locked}"), boto3.client("s3")
    place.put("/srv/data", head(5), NOW)
    tamper(client, locked, client.list_objects_v2(Bucket=locked)["Contents"][0]["Key"])
    anchors: set[Anchor] = set(place.anchors("/srv/data"))
    assert {(each.n, each.digest) for each in anchors} == {(5, f"{5:064d}")}


def test_the_bucket_s_own_rule_decides_where_it_has_one(locked: str) -> None:
    rule = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 7}}}
    client = boto3.client("s3")
    client.put_object_lock_configuration(Bucket=locked, ObjectLockConfiguration=rule)  # type: ignore[arg-type]
    AnchorBucket(f"s3://{locked}").put("/srv/data", head(1), NOW)
    (version,) = client.list_object_versions(Bucket=locked)["Versions"]
    assert client.head_object(Bucket=locked, Key=version["Key"])["ObjectLockMode"] == "GOVERNANCE"


def test_a_place_that_protects_nothing_is_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnlockedBucket, match="has no object lock, so an anchor in it can be deleted"):
        AnchorBucket(f"s3://{bucket}").put("/srv/data", head(1), NOW)
    assert "Contents" not in boto3.client("s3").list_objects_v2(Bucket=bucket)
    with pytest.raises(ValueError, match="there is no bucket nowhere-at-all"):
        AnchorBucket("s3://nowhere-at-all/x").check()
    with pytest.raises(ValueError, match="Give s3://bucket/prefix"):
        AnchorBucket("/srv/anchors")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match="cannot be reached"):
        AnchorBucket(f"s3://{bucket}").check()
