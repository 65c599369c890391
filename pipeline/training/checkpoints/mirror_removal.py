"""What a mirror holds of one training, taken out for good, and the mark that closes it to a training.

Owns what counts as gone: in a bucket every version of every object, delete markers and uploads that were cut, for a
delete marker alone hides what can still be fetched. Leaves the writers' claim and the marks: they hold no weights.
Refuses other stores than folders and S3: whether they keep versions is not known here.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pipeline.core.buckets import TIMEOUT_S, is_bucket
from pipeline.core.redaction import redacted
from pipeline.core.storage import write_atomically

CLAIM = "writer.json"
_MARK = "erased-"
_WORDS = b"An erasure removed data that this training learned from: nothing of it may lie here.\n"
_KEYS_PER_REQUEST = 1000
_GRANT = (
    "Grant s3:ListBucketVersions, s3:ListBucketMultipartUploads, s3:GetObject, s3:PutObject, s3:DeleteObject, "
    "s3:DeleteObjectVersion and s3:AbortMultipartUpload"
)


def mark_of(iteration: str) -> str:
    """The name of the object that closes a mirror to an iteration's training."""
    return f"{_MARK}{iteration}"


class MirrorFolder(Protocol):
    """One training's folder in a mirror. Every method raises OSError, with what to do, where the store does not answer
    or does not let it."""

    @property
    def name(self) -> str: ...

    def is_begun(self) -> bool:
        """Whether an attempt ever claimed it."""
        ...

    def close(self, iteration: str) -> None:
        """Leave the mark, unless it is there."""
        ...

    def steps(self) -> list[str]:
        """The names of the checkpoints, whole or not, of which anything is there."""
        ...

    def clear(self) -> list[str]:
        """Delete all of them, and list what is there then: a line for each checkpoint that stays, with the reason."""
        ...


def mirror_folder(uri: str, folder: str) -> MirrorFolder | None:
    """`folder` below the mirror's `uri`; None for a store that is neither a folder nor S3. Makes no connection."""
    if is_bucket(uri):
        return _S3Mirror(uri, folder)
    path = uri.removeprefix("file://")
    return None if "://" in path else _LocalMirror(Path(path).absolute() / folder)


def _is_kept(name: str) -> bool:
    return name == CLAIM or name.startswith(_MARK)


class _LocalMirror:
    def __init__(self, root: Path) -> None:
        self._root, self.name = root, str(root)

    def is_begun(self) -> bool:
        return (self._root / CLAIM).exists()

    def close(self, iteration: str) -> None:
        path = self._root / mark_of(iteration)
        if not path.exists():
            write_atomically(path, _WORDS)

    def steps(self) -> list[str]:
        try:
            return sorted(path.name for path in self._root.iterdir() if not _is_kept(path.name))
        except FileNotFoundError:
            return []

    def clear(self) -> list[str]:
        reasons: dict[str, str] = {}
        for step in self.steps():

            def refused(_: object, path: str, error: Any, step: str = step) -> None:
                reasons.setdefault(step, error[1].strerror or str(error[1]))

            path = self._root / step
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, onerror=refused)
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                reasons[step] = error.strerror or str(error)
        return [f"{self.name}/{step}: {reasons.get(step, 'it was written meanwhile')}" for step in self.steps()]


class _Version(NamedTuple):
    key: str
    version: str
    is_marker: bool


class _S3Mirror:
    def __init__(self, uri: str, folder: str) -> None:
        self.name = f"{uri.rstrip('/')}/{folder}"
        self._bucket, _, prefix = self.name.partition("://")[2].partition("/")
        self._prefix = f"{prefix}/"
        self._made: Any = None

    def is_begun(self) -> bool:
        return self._has(CLAIM)

    def close(self, iteration: str) -> None:
        if not self._has(mark_of(iteration)):
            with self._asked() as client:
                client.put_object(Bucket=self._bucket, Key=f"{self._prefix}{mark_of(iteration)}", Body=_WORDS)

    def steps(self) -> list[str]:
        keys = [each.key for each in self._entries()] + [each["Key"] for each in self._uploads()]
        return sorted({self._step(key) for key in keys})

    def clear(self) -> list[str]:
        entries = self._entries()
        refused = self._delete([each for each in entries if not each.is_marker])
        # A marker goes after what it hides: where a version is locked, deleting the marker would bring it back.
        entries = self._entries()
        hiding = {each.key for each in entries if not each.is_marker}
        refused |= self._delete([each for each in entries if each.is_marker and each.key not in hiding])
        for upload in self._uploads():
            with self._asked() as client:
                client.abort_multipart_upload(Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        return [*self._stay(refused), *self._cut()]

    def _stay(self, refused: dict[str, str]) -> Iterator[str]:
        there = self._entries()
        entries = [each for each in there if not each.is_marker] or there
        counted = Counter(self._step(each.key) for each in entries)
        for step in sorted(counted):
            first = min(each for each in entries if self._step(each.key) == step)
            why = self._locked(first) or refused.get(first.key, "they were written meanwhile")
            yield f"{self.name}/{step}: {counted[step]} versions of its files stay, {why}"

    def _cut(self) -> Iterator[str]:
        counted = Counter(self._step(each["Key"]) for each in self._uploads())
        for step in sorted(counted):
            yield f"{self.name}/{step}: {counted[step]} uploads that were cut stay; abort them"

    def _locked(self, entry: _Version) -> str:
        """What S3 keeps a version by; "" where it is no lock."""
        if entry.is_marker:
            return ""
        with self._asked() as client:
            head = client.head_object(Bucket=self._bucket, Key=entry.key, VersionId=entry.version)
        if head.get("ObjectLockLegalHoldStatus") == "ON":
            return "a legal hold is on them: its owner has to take it off"
        until = head.get("ObjectLockRetainUntilDate")
        return f"the bucket's object lock keeps them until {until:%Y-%m-%d} at least" if until else ""

    def _delete(self, entries: Sequence[_Version]) -> dict[str, str]:
        """Why the store refused, by key."""
        refused: dict[str, str] = {}
        for start in range(0, len(entries), _KEYS_PER_REQUEST):
            some = entries[start : start + _KEYS_PER_REQUEST]
            objects = [{"Key": each.key, "VersionId": each.version} for each in some]
            with self._asked() as client:
                answer = client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
            for error in answer.get("Errors", ()):
                refused[error["Key"]] = f"S3 does not let them be deleted ({error['Code']}). {_GRANT}"
        return refused

    def _entries(self) -> list[_Version]:
        entries: list[_Version] = []
        for page in self._pages("list_object_versions"):
            for kind in ("Versions", "DeleteMarkers"):
                entries += [_Version(e["Key"], e["VersionId"], kind != "Versions") for e in page.get(kind, ())]
        return [each for each in entries if not _is_kept(each.key.removeprefix(self._prefix))]

    def _uploads(self) -> list[dict[str, Any]]:
        return [upload for page in self._pages("list_multipart_uploads") for upload in page.get("Uploads", ())]

    def _pages(self, operation: str) -> Iterator[dict[str, Any]]:
        with self._asked() as client:
            yield from client.get_paginator(operation).paginate(Bucket=self._bucket, Prefix=self._prefix)

    def _has(self, name: str) -> bool:
        with self._asked() as client:
            listed = client.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._prefix}{name}")
        return any(each["Key"] == f"{self._prefix}{name}" for each in listed.get("Contents", ()))

    def _step(self, key: str) -> str:
        return key.removeprefix(self._prefix).partition("/")[0]

    @contextmanager
    def _asked(self) -> Generator[Any]:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import get_session

        try:
            if self._made is None:
                settings = Config(connect_timeout=TIMEOUT_S, read_timeout=60, retries={"total_max_attempts": 3})
                self._made = get_session().create_client("s3", config=settings)
            yield self._made
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            raise OSError(f"S3 answers {code} to {error.operation_name}. {_GRANT}, or correct the address") from error
        except BotoCoreError as error:
            raise OSError(
                f"S3 cannot be reached ({redacted(str(error))}). Check AWS_ENDPOINT_URL and the network"
            ) from error
