"""Anchors in a bucket whose objects nobody can delete or replace until a date: S3's object lock.

Owns the keys of the objects, `<prefix>/<mark of the data root>/<first digest of the log>/<lines>-<digest>.json`, and
how long they are kept. All versions are read, so an object that was written over, or hidden by a delete marker, still
counts. Refuses a bucket without object lock: what its owner may delete is no anchor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

from pipeline.audit_anchors import Anchor, HeadToAnchor
from pipeline.buckets import TIMEOUT_S, is_bucket, refusal

VARIABLE = "AUDIT_ANCHORS_URI"
RETAINED = timedelta(days=400)
"""Of an anchor in a bucket that has no retention of its own: by then thousands of newer ones say more."""
UNLOCKED = "ObjectLockConfigurationNotFoundError"


class UnlockedBucket(ValueError):
    """A bucket that protects no object."""


class AnchorBucket:
    """Anchors below `uri`, `s3://bucket/prefix`: a prefix for each deployment. Makes no connection until it is asked.

    Raises ValueError for another kind of address, UnlockedBucket for a bucket without object lock, and ValueError with
    what to do where S3 refuses or cannot be reached.
    """

    def __init__(self, uri: str) -> None:
        if not is_bucket(uri):
            raise ValueError(f"{VARIABLE} is {uri}. Give s3://bucket/prefix, of a bucket with object lock.")
        self.uri = uri.rstrip("/")
        self._bucket, _, prefix = self.uri.partition("://")[2].partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._client: Any = None

    def check(self) -> bool:
        """Raises what stands against anchoring here; whether the bucket has a retention of its own otherwise."""
        from botocore.exceptions import ClientError

        with self._asked() as client:
            try:
                lock = client.get_object_lock_configuration(Bucket=self._bucket)["ObjectLockConfiguration"]
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != UNLOCKED:
                    raise
                lock = {}
        if lock.get("ObjectLockEnabled") != "Enabled":
            raise UnlockedBucket(
                f"{VARIABLE}: the bucket {self._bucket} has no object lock, so an anchor in it can be deleted. Create "
                "a bucket with object lock (aws s3api create-bucket --object-lock-enabled-for-bucket) and name that."
            )
        return "DefaultRetention" in lock.get("Rule", {})

    def put(self, root: str, anchor: HeadToAnchor, now: datetime) -> None:
        """Keep a head. It can't be deleted for as long as the bucket's rule says, else for RETAINED."""
        retained = {} if self.check() else {
            "ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": now.astimezone(UTC) + RETAINED
        }  # fmt: skip
        head = anchor.head
        name = f"{self._prefix}{_mark(root)}/{anchor.log}/{head.n:012d}-{head.digest}.json"
        body = json.dumps({"root": root, "log": anchor.log, "n": head.n, "digest": head.digest}).encode()
        with self._asked() as client:
            client.put_object(
                Bucket=self._bucket, Key=name, Body=body, ContentType="application/json", ChecksumAlgorithm="SHA256",
                **retained,
            )  # fmt: skip

    def anchors(self, root: str) -> Iterator[Anchor]:
        """Every anchor of every data root below the prefix; those of other roots have a mark in place of a path."""
        self.check()
        with self._asked() as client:
            pages = client.get_paginator("list_object_versions").paginate(Bucket=self._bucket, Prefix=self._prefix)
            versions = [each for page in pages for each in page.get("Versions", ())]
        for version in versions:
            parts = PurePosixPath(version["Key"].removeprefix(self._prefix)).parts
            n, _, digest = parts[-1].removesuffix(".json").partition("-")
            if len(parts) == 3 and n.isdigit() and digest:
                at = version["LastModified"].timestamp()
                place = root if parts[0] == _mark(root) else f"the data root of mark {parts[0]}"
                yield Anchor(at, place, parts[1], int(n), digest, self.uri)

    @contextmanager
    def _asked(self) -> Generator[Any]:
        from botocore import exceptions
        from botocore.config import Config
        from botocore.session import get_session

        try:
            if self._client is None:
                settings = Config(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"total_max_attempts": 1})
                self._client = get_session().create_client("s3", config=settings)
            yield self._client
        except exceptions.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            raise ValueError(f"{VARIABLE}: {refusal(self.uri, self._bucket, code, error)}") from error
        except exceptions.BotoCoreError as error:
            raise ValueError(
                f"{VARIABLE}: {self.uri} cannot be reached ({error}). Check it and the network."
            ) from error


def _mark(root: str) -> str:
    return hashlib.sha256(root.encode()).hexdigest()[:16]
