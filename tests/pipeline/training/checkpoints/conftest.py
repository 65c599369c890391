"""Small checkpoints, and every way to harm one."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints.checkpointer import Checkpointer
from pipeline.training.checkpoints.manifest import MANIFEST, Origin

WEIGHTS, STATE, NESTED = "adapter_model.safetensors", "optimizer.pt", "global_step/rank_0.pt"
FILES = (WEIGHTS, STATE, NESTED)
PLAN = "p" * 64


class Run:
    """One attempt of a training in `folder`, and what it said."""

    def __init__(self, folder: Path, plan: str = PLAN, world_size: int = 1, iteration: str = "", **settings: object):
        self.folder, self.root = folder, folder / "checkpoints"
        self.said: list[str] = []
        origin = Origin(plan, world_size, iteration)
        self.checkpoints = Checkpointer(self.root, origin, Checkpoints.model_validate(settings), self.said.append)

    def save(self, step: int, score: float | None = None) -> Path:
        return self.checkpoints.commit(trained(self.folder / "trl" / f"checkpoint-{step}", step), step, score)

    def newest(self) -> str | None:
        return (found := self.checkpoints.newest()) and found.name

    def best(self) -> str | None:
        return (found := self.checkpoints.best()) and found.name

    def there(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir())


def trained(folder: Path, step: int) -> Path:
    """What a trainer saved at `step`."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"{name} {step}".encode() * 50)
    return folder


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x04
    path.write_bytes(data)


HARMS: dict[str, Callable[[Path], object]] = {
    "flip": _flip,
    "truncate": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "remove": lambda path: path.unlink(),
}


def is_whole(folder: Path) -> bool:
    """The same question as the code's own, answered without it."""
    files = json.loads((folder / MANIFEST).read_text())["files"]
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {MANIFEST}
    return there == files.keys() and all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256 for name, sha256 in files.items()
    )
