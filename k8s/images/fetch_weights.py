"""Brings a model to a server's disk before the server starts: `python -m k8s.images.fetch_weights URI DIGEST FOLDER`.

Owns the promise that what serves is, to the bit, what the gate passed. Refuses to choose a model: the pod names it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pipeline.storage import digest_dir


def fetch(uri: str, digest: str, folder: Path) -> None:
    """Copy the model directory at `uri` (s3://, gs://, a path) into `folder`, in place of what an earlier try left.

    Raises ValueError when there is none, or when its digest, in hexadecimal, is another.
    """
    import fsspec

    if folder.is_dir() and any(folder.iterdir()) and digest_dir(folder) == digest:
        return  # the server restarted, not the pod
    shutil.rmtree(folder, ignore_errors=True)
    files, source = fsspec.url_to_fs(uri)
    for name in files.find(source):
        target = folder / name.removeprefix(source).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        files.get_file(name, str(target))
    if not folder.is_dir():
        raise ValueError(f"There is nothing at {uri}. Name the folder of an exported model.")
    actual_digest = digest_dir(folder)
    if actual_digest != digest:
        raise ValueError(
            f"{uri} has the digest {actual_digest}, not {digest}. Name the digest that its model version records."
        )


if __name__ == "__main__":
    address, wanted, target = sys.argv[1:]
    try:
        fetch(address, wanted, Path(target))
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"fetch_weights: {error}")
