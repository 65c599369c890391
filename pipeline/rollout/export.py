"""Brings a model's files to where the slots load them: a bucket or a mounted folder, under a name that is its digest.

A manifest beside the folder is written last, once every file was read back there and the whole has the model's digest:
without it the model is not exported, whatever lies in the folder. So a name is never reused, an attempt that was cut
off goes on where it was, and nobody types an address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.storage import ModelRef, Record, digest_file, digest_json, write_atomically

CHUNK = 8 << 20
S3_ATTEMPTS = 8
S3_TIMEOUT_S = 60.0


class ExportedFile(Record):
    """One file of an exported model."""

    bytes: int
    sha256: str


class ExportManifest(Record):
    """That a model is exported whole. Lies beside its folder, for the folder's digest counts all that is in it."""

    digest: str
    files: dict[str, ExportedFile]


def exported_uri(root: str, model_name: str, digest: str) -> str:
    """Where a model lies once it is exported."""
    return f"{root.rstrip('/')}/{model_name}/{digest}"


def export_model(model: ModelRef, root: str, model_name: str, log: Callable[[str], None] = print) -> ModelRef:
    """The model at its place below `root` (`s3://bucket/prefix`, or a folder that the slots mount).

    What is there already is read back and kept. Raises ValueError when the files here are not what the reference names
    or the folder there holds others, OSError when the place cannot be read or written.
    """
    uri = exported_uri(root, model_name, model.digest)
    with _reached(uri):
        files, target = _open(uri)
        if _manifest(files, target, model.digest) is not None:
            return ModelRef(uri=uri, digest=model.digest)
    folder = Path(model.uri)
    local = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    wanted = {name: ExportedFile(bytes=path.stat().st_size, sha256=digest_file(path)) for name, path in local.items()}
    if _digest(wanted) != model.digest:
        raise ValueError(
            f"{folder} has the digest {_digest(wanted)[:12]}, not {model.digest[:12]}: its files changed since they "
            "were judged. Train or evaluate again; what was not judged is not exported."
        )
    with _reached(uri):
        for name, path in local.items():
            place = f"{target}/{name}"
            if _sha256(files, place, wanted[name].bytes) == wanted[name].sha256:
                log(f"{name} is at {uri} already")
                continue
            files.makedirs(place.rpartition("/")[0], exist_ok=True)
            files.put_file(str(path), place)
            there = _sha256(files, place, wanted[name].bytes)
            if there != wanted[name].sha256:
                raise OSError(f"{place} reads back as {there[:12] or 'nothing'}, not {wanted[name].sha256[:12]}")
            log(f"{name} brought to {uri}, {wanted[name].bytes:,} bytes")
        strays = {path[len(target) :].lstrip("/") for path in files.find(target)} - wanted.keys()
        if strays:
            raise ValueError(f"{uri} also holds {', '.join(sorted(strays))}, which is not of the model. Remove it.")
        manifest = ExportManifest(digest=model.digest, files=wanted)
        _publish(files, _beside(target), manifest.model_dump_json(indent=2).encode())
    return ModelRef(uri=uri, digest=model.digest)


def exported(digest: str, root: str, model_name: str) -> str:
    """The address of an exported model. Raises ValueError while it is not, OSError when the place cannot be read."""
    uri = exported_uri(root, model_name, digest)
    with _reached(uri):
        files, target = _open(uri)
        if _manifest(files, target, digest) is None:
            raise ValueError(f"Model {digest[:12]} is not exported to {uri}. Export it before it gets a slot.")
    return uri


def _manifest(files: Any, target: str, digest: str) -> ExportManifest | None:
    """The manifest; None where there is none, or where a file that it names is not there whole."""
    place = _beside(target)
    if _size(files, place) is None:
        return None
    try:
        manifest = ExportManifest.model_validate_json(files.cat_file(place))
    except ValidationError as error:
        raise ValueError(f"{place} is no manifest of an export ({error}). Remove it, and export again.") from error
    if manifest.digest != digest or _digest(manifest.files) != digest:
        raise ValueError(f"{place} is the manifest of {manifest.digest[:12]}. Remove it, and export again.")
    sizes = {path[len(target) :].lstrip("/"): row["size"] for path, row in files.find(target, detail=True).items()}
    return manifest if sizes == {name: file.bytes for name, file in manifest.files.items()} else None


def _publish(files: Any, place: str, content: bytes) -> None:
    """In one step: an object store has no half objects, and a folder gets the file by renaming it."""
    if "file" in files.protocol:
        write_atomically(Path(place), content)
        return
    files.pipe_file(place, content)


def _digest(files: dict[str, ExportedFile]) -> str:
    """As `digest_dir` has it."""
    return digest_json({name: file.sha256 for name, file in files.items()})


def _sha256(files: Any, place: str, size: int) -> str:
    """Of what lies there; "" where there is nothing of that size."""
    if _size(files, place) != size:
        return ""
    digest = hashlib.sha256()
    with files.open(place, "rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _size(files: Any, place: str) -> int | None:
    """In bytes; None where there is no such file. `isfile` would say no to a place that cannot be reached."""
    try:
        row = files.info(place)
    except FileNotFoundError:
        return None
    return int(row["size"]) if row["type"] == "file" else None


def _beside(target: str) -> str:
    return f"{target}.json"


def _open(uri: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    options: dict[str, Any] = {}
    if uri.startswith(("s3://", "s3a://")):
        retries = {"mode": "standard", "max_attempts": S3_ATTEMPTS}
        options = {"config_kwargs": {"retries": retries, "connect_timeout": S3_TIMEOUT_S, "read_timeout": S3_TIMEOUT_S}}
    # A cached listing would hide what another attempt brought since.
    files, target = url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True, **options)
    return files, target.rstrip("/")


@contextmanager
def _reached(uri: str) -> Generator[None]:
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
        raise OSError(
            f"{uri} cannot be reached ({error}). Check the address, the credentials and the rights."
        ) from error
