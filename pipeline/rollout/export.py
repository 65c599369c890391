"""Brings a model's files to where the slots load them: a bucket or a mounted folder, under its digest. A manifest
next to the folder is written last, after every file was read back: without it the model is not exported."""

from collections.abc import Callable
from pathlib import Path

from pipeline.core.model_files import model_files
from pipeline.core.objects import opened, reached
from pipeline.core.storage import ModelRef, digest_file, write_atomically
from pipeline.serving.model_places import (
    ExportedFile,
    ExportManifest,
    folder_digest,
    manifest_beside,
    sha256_of,
    sizes_below,
)


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
