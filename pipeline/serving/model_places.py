"""Where models lie whole under their digests: a bucket or a mounted folder, with a manifest of an exported one; the
export, which writes the manifest last, after every file was read back; and the copy of one onto this machine, which is
verified, goes on after a kill, and is in its place whole or not at all."""

import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.core.model_files import is_hidden, model_files
from pipeline.core.objects import opened, reached
from pipeline.core.storage import ModelRef, Record, digest_dir, digest_file, digest_json, publish_dir, write_atomically

AT_ONCE = 4
"""Files that are copied at the same time."""


class ExportedFile(Record):
    """One file of an exported model."""

    bytes: int
    sha256: str


class ExportManifest(Record):
    """Says that a model is exported whole. It is not in the folder, whose digest counts all files."""

    digest: str
    files: dict[str, ExportedFile]


def copy_model(uri: str, digest: str, folder: Path, log: Callable[[str], None] = print) -> None:
    """Copy the model at `uri` (s3://, gs://, a path) to `folder`, in place of anything else there. Whole files that an
    earlier try left are kept. Raises ValueError when there is no model, or one with another digest; OSError when the
    place cannot be read or the disk is full: another try goes on."""
    if folder.is_dir() and any(folder.iterdir()) and digest_dir(folder) == digest:
        return
    partial = partial_folder(folder, digest)
    with reached(uri):
        files, target = opened(uri)
        sizes = sizes_below(files, target)
        if not sizes:
            raise ValueError(f"There is nothing at {uri}. Name the folder of an exported model.")
        actual = _copied(files, target, sizes, partial)
    if actual != digest:
        shutil.rmtree(partial)
        raise ValueError(
            f"{uri} has the digest {actual}, not {digest}. Name the digest that its model version records, or try "
            "again where an earlier try was cut."
        )
    shutil.rmtree(folder, ignore_errors=True)
    publish_dir(partial, folder)
    log(f"{uri} copied to {folder}, {sum(sizes.values()):,} bytes")


def partial_folder(folder: Path, digest: str) -> Path:
    """Where a copy grows: by its digest, so that no try goes on with another model's."""
    return folder.with_name(f".{folder.name}.partial-{digest[:16]}")


def manifest_beside(files: Any, target: str, digest: str) -> ExportManifest | None:
    """The manifest; None where there is none, or where a file that it names is not there whole."""
    place = f"{target}.json"
    if size_of(files, place) is None:
        return None
    try:
        manifest = ExportManifest.model_validate_json(files.cat_file(place))
    except ValidationError as error:
        raise ValueError(f"{place} is no manifest of an export ({error}). Remove it, and export again.") from error
    if manifest.digest != digest or folder_digest(manifest.files) != digest:
        raise ValueError(f"{place} is the manifest of {manifest.digest[:12]}. Remove it, and export again.")
    return manifest if sizes_below(files, target) == {n: file.bytes for n, file in manifest.files.items()} else None


def folder_digest(files: dict[str, ExportedFile]) -> str:
    """As `digest_dir` has it."""
    return digest_json({name: file.sha256 for name, file in files.items()})


def sizes_below(files: Any, target: str) -> dict[str, int]:
    """Bytes of every file that is not hidden, by its name relative to the folder."""
    found = {path[len(target) :].lstrip("/"): row["size"] for path, row in files.find(target, detail=True).items()}
    return {name: size for name, size in found.items() if not is_hidden(Path(name))}


def size_of(files: Any, place: str) -> int | None:
    """In bytes; None where there is no such file. `isfile` would say no to a place that cannot be reached."""
    try:
        row = files.info(place)
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error.__cause__):
            raise
        return None
    return int(row["size"]) if row["type"] == "file" else None


def sha256_of(files: Any, place: str, size: int) -> str:
    """Of what lies there; "" where there is nothing of that size."""
    if size_of(files, place) != size:
        return ""
    with files.open(place, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _copied(files: Any, target: str, sizes: dict[str, int], partial: Path) -> str:
    """Copy the files that are not there whole; returns the digest of the copy in `partial`."""

    def one(name: str) -> str:
        path = partial / name
        if not (path.is_file() and path.stat().st_size == sizes[name]):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(f"{target}/{name}", str(path))
        return digest_file(path)

    for stray in (path for path in partial.rglob("*") if path.is_file()):
        if str(stray.relative_to(partial)) not in sizes:
            stray.unlink()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return digest_json(dict(zip(sizes, pool.map(one, sizes), strict=True)))


def exported_uri(root: str, model_name: str, digest: str) -> str:
    return f"{root.rstrip('/')}/{model_name}/{digest}"


def export_model(model: ModelRef, root: str, model_name: str, log: Callable[[str], None] = print) -> ModelRef:
    """The model at its place below `root` (`s3://bucket/prefix`, or a folder that the slots mount). What is there
    already is read back and kept. Raises ValueError when the files here are not what the reference names or the folder
    there holds others, OSError when the place cannot be read or written."""
    uri = exported_uri(root, model_name, model.digest)
    with reached(uri):
        files, target = opened(uri)
        if manifest_beside(files, target, model.digest) is not None:
            return ModelRef(uri=uri, digest=model.digest)
    folder = Path(model.uri)
    local = {name: folder / name for name in model_files(folder)}
    wanted = {name: ExportedFile(bytes=path.stat().st_size, sha256=digest_file(path)) for name, path in local.items()}
    if folder_digest(wanted) != model.digest:
        raise ValueError(
            f"{folder} has the digest {folder_digest(wanted)[:12]}, not {model.digest[:12]}: its files changed since "
            "they were judged. Train or evaluate again; what was not judged is not exported."
        )
    with reached(uri):
        for name, path in local.items():
            place = f"{target}/{name}"
            if sha256_of(files, place, wanted[name].bytes) == wanted[name].sha256:
                log(f"{name} is at {uri} already")
                continue
            files.put_file(str(path), place)
            there = sha256_of(files, place, wanted[name].bytes)
            if there != wanted[name].sha256:
                raise ValueError(
                    f"{place} reads back as {there[:12] or 'nothing'}, not {wanted[name].sha256[:12]}. Export again."
                )
            log(f"{name} brought to {uri}, {wanted[name].bytes:,} bytes")
        strays = sizes_below(files, target).keys() - wanted.keys()
        if strays:
            raise ValueError(f"{uri} also holds {', '.join(sorted(strays))}, which is not of the model. Remove it.")
        manifest = ExportManifest(digest=model.digest, files=wanted).model_dump_json(indent=2).encode()
        if "file" in files.protocol:  # in one step, as an object store does it
            write_atomically(Path(f"{target}.json"), manifest)
        else:
            files.pipe_file(f"{target}.json", manifest)
    return ModelRef(uri=uri, digest=model.digest)


def exported(digest: str, root: str, model_name: str) -> str:
    """The address of an exported model. Raises ValueError while it is not, OSError when the place cannot be read."""
    uri = exported_uri(root, model_name, digest)
    with reached(uri):
        files, target = opened(uri)
        if manifest_beside(files, target, digest) is None:
            raise ValueError(f"Model {digest[:12]} is not exported to {uri}. Export it before it gets a slot.")
    return uri
