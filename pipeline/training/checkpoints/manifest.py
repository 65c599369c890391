"""A checkpoint's manifest with hashes, written last: safetensors loads a flipped bit without an error, and the Trainer
resumes from half a checkpoint. Also which checkpoints are kept."""

import math
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pydantic import ValidationError, field_validator

from pipeline.core.storage import Record, digest_file
from pipeline.recipe import Checkpoints

MANIFEST = "manifest.json"
HASHERS = 4
"""Files hashed at once: sha256 leaves the interpreter's lock, and a sharded checkpoint has many files."""


class Origin(NamedTuple):
    """The training that a checkpoint must come from."""

    plan_digest: str
    """Algorithm, base model, data, seed: see TrainingPlan.digest."""
    world_size: int
    """Optimizer shards and random states are saved per process: another number of them cannot load."""
    iteration: str = ""
    """Whose training it is; two iterations with the same rows have checkpoints that fit both."""


class CheckpointManifest(Record):
    """Everything that a checkpoint holds, apart from the manifest."""

    plan_digest: str
    step: int
    world_size: int
    score: float | None
    """Held-out accuracy at this step; None where none was measured."""
    files: dict[str, str]
    """sha256 by path relative to the checkpoint, with forward slashes."""

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files:
            path = PurePosixPath(name)
            if not path.parts or path.is_absolute() or ".." in path.parts or str(path) != name:
                raise ValueError(f"it names {name!r}, which is no file inside its folder")
        return files


def written(manifest: CheckpointManifest) -> bytes:
    """The content of the manifest's file."""
    return (manifest.model_dump_json(indent=2) + "\n").encode()


def checked(content: bytes, origin: Origin, step: int) -> CheckpointManifest:
    """The manifest of the checkpoint of `step`. Raises ValueError with the reason why it must not be resumed from."""
    try:
        manifest = CheckpointManifest.model_validate_json(content)
    except ValidationError as error:
        raise ValueError(f"{MANIFEST} cannot be read ({error.errors()[0]['msg']})") from error
    if manifest.world_size != origin.world_size:
        raise ValueError(f"{manifest.world_size} processes saved it, and now there are {origin.world_size}")
    if manifest.plan_digest != origin.plan_digest:
        raise ValueError("it belongs to another plan")
    if manifest.step != step:
        raise ValueError(f"{MANIFEST} says step {manifest.step}")
    return manifest


def read(folder: Path, origin: Origin) -> CheckpointManifest:
    """The manifest of a folder named after its step. Raises ValueError as `checked` does."""
    step = step_of(folder.name)
    assert step is not None, folder
    try:
        return checked((folder / MANIFEST).read_bytes(), origin, step)
    except OSError as error:
        raise ValueError(f"{MANIFEST} cannot be read ({error.strerror})") from error


def measure(folder: Path) -> dict[str, str]:
    """The sha256 of every file of a checkpoint. Links are left out: one can change without its checkpoint."""
    there = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    paths = sorted(path for path in there if path.name != MANIFEST)
    names = [path.relative_to(folder).as_posix() for path in paths]
    with ThreadPoolExecutor(HASHERS) as pool:
        return dict(zip(names, pool.map(digest_file, paths), strict=True))


def find_flaw(folder: Path, manifest: CheckpointManifest) -> str | None:
    """Why `folder` does not hold exactly what its manifest says, naming the file; None when it does."""
    try:
        there = measure(folder)
    except OSError as error:
        return f"a file cannot be read ({error})"
    for name in sorted(manifest.files.keys() | there.keys()):
        if name not in there:
            return f"{name} is missing"
        if name not in manifest.files:
            return f"{name} is not in its {MANIFEST}"  # the Trainer decides by the files that are there
        if there[name] != manifest.files[name]:
            return f"{name} does not have its recorded sha256"
    return None


def folder_name(step: int) -> str:
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """The step of a published checkpoint's folder name; None for any other name."""
    match = re.fullmatch(r"step-(\d+)", name)
    return int(match[1]) if match else None


def keep(manifests: Collection[CheckpointManifest], committed: int, settings: Checkpoints) -> set[int]:
    """Steps to keep: the last ones up to the one just `committed`, and the best ones by score. What is
    newer than `committed` was passed over at the start or is not known here, so it neither takes a place nor is
    dropped: callers drop steps up to `committed` alone."""
    past = [each for each in manifests if each.step <= committed]
    last = sorted((each.step for each in past), reverse=True)[: settings.keep_last]
    best = sorted((each for each in past if rank(each)[0] > -math.inf), key=rank, reverse=True)[: settings.keep_best]
    return {committed, *last, *(each.step for each in best)}


def rank(manifest: CheckpointManifest) -> tuple[float, int]:
    """Sorts the best last. Of equal scores the earlier step is better: it is nearer to the base model. A checkpoint
    without a score, or whose score is not a number, is worse than any other; the newest of these first."""
    score = manifest.score
    if score is None or not math.isfinite(score):
        return -math.inf, manifest.step
    return score, -manifest.step
