"""Checkpoints that survive a kill at any instant: staged, synced, sealed by a manifest, published by one rename.

Owns which checkpoint may be resumed from: the newest whose manifest is there, whose every file has its recorded
sha256, and which belongs to the same plan. safetensors loads a flipped bit without a word and the Trainer resumes
from half a checkpoint without one, so the manifest alone decides.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from pipeline.storage import Record, digest_file, publish_dir, write_atomically

MANIFEST = "manifest.json"
KEEP = 2


class Manifest(Record):
    """What a complete checkpoint consists of: sha256 by relative file name."""

    plan_digest: str
    step: int
    files: dict[str, str]


def commit(saved: Path, root: Path, plan_digest: str, step: int) -> Path:
    """Seal what the Trainer saved in `saved` and publish it as `root/step-N`; then drop all but the newest two."""
    files = {str(f.relative_to(saved)): digest_file(f) for f in sorted(saved.rglob("*")) if f.is_file()}
    manifest = Manifest(plan_digest=plan_digest, step=step, files=files)
    write_atomically(saved / MANIFEST, manifest.model_dump_json(indent=2))
    final = root / f"step-{step:06d}"
    if final.exists():  # left by an attempt whose checkpoint did not verify
        shutil.rmtree(final)
    publish_dir(saved, final)
    for old in published(root)[KEEP:]:
        shutil.rmtree(old)
    return final


def published(root: Path) -> list[Path]:
    """Published checkpoint directories, newest first."""
    return sorted(root.glob("step-*"), reverse=True)


def newest_complete(root: Path, plan_digest: str, warn: Callable[[str], None]) -> Path | None:
    """The checkpoint to resume from, or None. Each one passed over is reported with the file that disqualified it."""
    for folder in published(root):
        flaw = find_flaw(folder, plan_digest)
        if flaw is None:
            return folder
        warn(f"checkpoint {folder.name} is passed over: {flaw}")
    return None


def find_flaw(folder: Path, plan_digest: str) -> str | None:
    """Why a checkpoint must not be resumed from, or None."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"
    if manifest.plan_digest != plan_digest:
        return "it belongs to another plan"
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if digest_file(path) != expected:
            return f"{name} does not have its recorded sha256"
    return None


@contextmanager
def only_writer(root: Path) -> Generator[None]:
    """Hold the directory's writer lock; the kernel frees it when this process ends, however it ends.

    Raises ValueError when another live process holds it.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / "writer.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Another process is training in {root}. Wait for it, or end it, and run again.") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
