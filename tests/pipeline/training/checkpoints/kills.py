"""Commits checkpoints in a loop, is killed at random instants, and counts what is left.

    python kills.py FOLDER KILLS SEED {committed,mirrored,plain} STEPS

Prints one JSON object: the kills, the checkpoints that were torn, how often a resume would have gone back behind the
last commit that had returned, and steps published: more kills than asked for, on a disk so slow that fewer than STEPS
come through. `plain` writes as the Trainer does, and resumes from the highest
number. A process of its own, so that it can fork: starting Python for every kill would take most of the time.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import MANIFEST, Checkpointer, published
from pipeline.training.checkpoints.manifest import Origin
from pipeline.training.checkpoints.mirror import Mirror

PLAN = "p" * 64
SIZES = {"adapter_model.safetensors": 1 << 20, "optimizer.pt": 2 << 20, "trainer_state.json": 10_000}
NOISE = os.urandom(max(SIZES.values()))


def write(saved: Path) -> None:
    saved.mkdir(parents=True)
    for name, size in SIZES.items():
        (saved / name).write_bytes(os.urandom(8) + NOISE[: size - 8])


def train(folder: Path, kind: str, returned: int) -> None:
    """Save step after step until killed; each save that returned is told through the pipe."""
    root, step = folder / "checkpoints", 0
    shutil.rmtree(folder / "trl", ignore_errors=True)
    if kind == "plain":
        there = sorted(root.glob("step-*"))
        step = int(there[-1].name[5:]) if there else 0
        for old in there[:-1]:
            shutil.rmtree(old)
        while True:
            step += 1
            write(root / f"step-{step:06d}")
            os.write(returned, f"{step}\n".encode())
    mirror = f"file://{folder}/mirror" if kind == "mirrored" else None
    settings = Checkpoints(keep_last=2, keep_best=1, mirror=mirror)
    checkpoints = Checkpointer(root, Origin(PLAN, 1), 1, settings, lambda line: None)
    step = int(found.name[5:]) if (found := checkpoints.newest()) else 0
    while True:
        step += 1
        write(folder / "trl" / f"checkpoint-{step}")
        checkpoints.commit(folder / "trl" / f"checkpoint-{step}", step, random.random())
        os.write(returned, f"{step}\n".encode())


def is_whole(folder: Path) -> bool:
    if not (folder / MANIFEST).is_file():
        return {p.name: p.stat().st_size for p in folder.iterdir()} == SIZES
    files = json.loads((folder / MANIFEST).read_text())["manifest"]["files"]
    return files.keys() == SIZES.keys() and all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == file["sha256"] for name, file in files.items()
    )


def left(folder: Path, kind: str) -> Path | None:
    """What the next attempt would resume from."""
    root = folder / "checkpoints"
    if kind == "plain":
        return max(root.glob("step-*"), default=None)
    if kind == "committed":
        torn = [folder for folder in published(root) if not is_whole(folder)]
        return torn[0] if torn else Checkpointer(root, Origin(PLAN, 1), 1, Checkpoints(), lambda line: None).newest()
    found = Mirror(f"file://{folder}/mirror", Origin(PLAN, 1)).manifests()
    place = folder / "mirror" / PLAN[:12]
    names = [f"step-{each.step:06d}" for each in found]
    torn = [name for name in names if not is_whole(place / name)]
    return place / (torn or sorted(names))[-1] if names else None


def main(folder: Path, kills: int, seed: int, kind: str, steps: int) -> dict[str, int]:
    dice = random.Random(seed)
    torn = back = last = kill = 0
    save_s = 0.0
    while kill <= kills or (last < steps and kill < 10 * kills):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reading)
            train(folder, kind, writing)
        os.close(writing)
        begun = time.monotonic()
        with os.fdopen(reading) as pipe:
            if not save_s:  # how long one takes, here and now
                last = int(pipe.readline())
                save_s = time.monotonic() - begun
            time.sleep(dice.uniform(0, 3 * save_s))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            last = max([last, *map(int, pipe.read().split())])
        found = left(folder, kind)
        if found is not None and not is_whole(found):
            torn += 1
            shutil.rmtree(found)  # as a person would
        elif found is None or int(found.name[5:]) < last:
            back += 1
        kill += 1
    return {"kills": kill, "torn": torn, "back": back, "steps": last}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))))
