"""The checkpoints of one training: a kill at any instant leaves a complete one, published by one rename after its files
and directories are synced. And when the next one is due."""

import math
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.core.objects import fault
from pipeline.core.storage import publish_dir, write_atomically
from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import manifest as manifests
from pipeline.training.checkpoints.manifest import MANIFEST, CheckpointManifest, Origin, find_flaw, folder_name, step_of
from pipeline.training.checkpoints.mirror import Mirror, Uploads

SAVES = 5
"""Whose median counts: one slow disk write must not stretch the interval."""


class Checkpointer:
    """Commits, finds and keeps checkpoints under `root`, and copies them to the recipe's mirror. `say` hears a line for
    people for each checkpoint that is passed over and each upload that fails; it is called from a thread too. `fence`
    is called before anything is published, and raises for an attempt that was replaced. Clears what a killed attempt
    left unpublished."""

    def __init__(
        self,
        root: Path,
        origin: Origin,
        settings: Checkpoints,
        say: Callable[[str], None],
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        self._root, self._settings, self._say = root, settings, say
        self._origin, self.fence = origin, fence
        self._flawed: set[int] = set()
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(".step-*"):  # what a killed process left on its way in or out
            shutil.rmtree(leftover)
        self._mirror = Mirror(settings.mirror, origin) if settings.mirror else None
        self.uploads = Uploads(self._mirror, settings, say) if self._mirror else None

    def newest(self) -> Path | None:
        """The checkpoint to resume from, fetched from the mirror if that has a newer one; None to begin at step 0. Each
        one passed over is said, with the file or the rule that disqualified it. Raises ConnectionError when nothing is
        here and the mirror, which may have something, does not answer: to begin again could cost days."""
        remote, silence = self._remote()
        folder, cut = self._first(remote, lambda manifest: manifest.step)
        if folder is None and (silence or cut):
            raise ConnectionError(
                f"There is no checkpoint in {self._root}, and {silence or cut} Start again when the mirror answers, "
                "or set training.checkpoints.mirror to null to begin at step 0."
            )
        if folder is not None and self.uploads is not None:
            self.uploads.offer(folder)  # the last attempt may have been killed before it was up
        return folder

    def best(self) -> Path | None:
        """The complete checkpoint that `rank` puts first, from the mirror too; None without any."""
        return self._first(self._remote()[0], manifests.rank)[0]

    def commit(self, saved: Path, step: int, score: float | None) -> Path:
        """Publish what the trainer saved in the folder `saved`, which is moved. Durable once this returns. `saved` lies
        on the file system of `root`. A step that is published and whole stands as it is. Then the upload begins, and
        retention comes."""
        self.fence()
        final = self._root / folder_name(step)
        known = {manifest.step: manifest for manifest in self._local()}
        if step in known and find_flaw(final, known[step]) is None:
            shutil.rmtree(saved)
        else:
            self._publish(saved, step, score, final)
        self._flawed.discard(step)
        if self.uploads is not None:
            self.uploads.offer(final)  # before retention, which spares what waits
        self._retain(step)
        return final

    @property
    def is_erased(self) -> bool:
        """Whether an erasure has closed the mirror to this training, wherever its folder lies."""
        return self.uploads is not None and self.uploads.erased

    def close(self, within_s: float = 0.0) -> None:
        """Begin no further upload after those that end in time."""
        if self.uploads is not None:
            self.uploads.drain(within_s)
            self.uploads.close()

    def _publish(self, saved: Path, step: int, score: float | None, final: Path) -> None:
        manifest = CheckpointManifest(
            plan_digest=self._origin.plan_digest,
            step=step,
            world_size=self._origin.world_size,
            score=score,
            files=manifests.measure(saved),
        )
        assert manifest.files, f"the trainer saved nothing in {saved}"
        write_atomically(saved / MANIFEST, manifests.written(manifest))
        self.fence()
        remove(final)  # not whole: an attempt passed it over
        published_now = publish_dir(saved, final)
        assert published_now, f"another process writes to {final}"

    def _retain(self, committed: int) -> None:
        sound = [each for each in self._local() if each.step not in self._flawed]
        kept = manifests.keep(sound, committed, self._settings)
        for folder in published(self._root):
            step = step_of(folder.name) or 0
            needed = step in kept or (self.uploads is not None and self.uploads.needs(folder))
            if step <= committed and not needed:
                remove(folder)

    def _first(
        self, remote: Sequence[CheckpointManifest], order: Callable[[CheckpointManifest], Any]
    ) -> tuple[Path | None, str]:
        """The whole checkpoint that comes last in `order`, the disk before the mirror; and how fetching one failed."""
        cut = ""
        both = [(order(each), True, each) for each in self._local(self._say)]
        both += [(order(each), False, each) for each in remote]
        for _, here, manifest in sorted(both, key=lambda one: one[:2], reverse=True):
            folder = self._root / folder_name(manifest.step)
            try:
                flaw = find_flaw(folder, manifest) if here else self._fetch(manifest, folder)
            except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
                flaw = cut = f"fetching it from the mirror failed: {fault(error)}"
            if flaw is None:
                self._flawed.discard(manifest.step)
                return folder, cut
            self._flawed.add(manifest.step)
            self._say(f"checkpoint {folder.name}{'' if here else ' in the mirror'} is passed over: {flaw}")
        return None, cut

    def _fetch(self, manifest: CheckpointManifest, final: Path) -> str | None:
        """Publish the mirror's checkpoint here if every file arrives as its manifest says; else its flaw."""
        assert self._mirror is not None
        staging = final.with_name(f".{final.name}-fetched")
        try:
            self._mirror.fetch(manifest, staging)
            flaw = find_flaw(staging, manifest)
            if flaw is None:
                remove(final)
                publish_dir(staging, final)
            return flaw
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _remote(self) -> tuple[list[CheckpointManifest], str]:
        """What the mirror has, and what kept it from answering, if anything."""
        if self._mirror is None:
            return [], ""
        try:
            self._mirror.open_anew()
            return self._mirror.manifests(self._say), ""
        except Exception as error:  # the same boundary
            silence = f"the mirror {self._mirror.uri} does not answer: {fault(error)}"
            self._say(silence)
            return [], silence

    def _local(self, warn: Callable[[str], None] = lambda reason: None) -> list[CheckpointManifest]:
        local: list[CheckpointManifest] = []
        for folder in published(self._root):
            try:
                local.append(manifests.read(folder, self._origin))
            except ValueError as reason:
                warn(f"checkpoint {folder.name} is passed over: {reason}")
        return local


def published(root: Path) -> list[Path]:
    """Published checkpoint folders, newest first, whole or not."""
    steps = {folder: step for folder in root.glob("step-*") if (step := step_of(folder.name)) is not None}
    return sorted(steps, key=lambda folder: steps[folder], reverse=True)


def remove(folder: Path) -> None:
    """Out of sight by one rename first: a kill leaves no half of it under its name."""
    gone = folder.with_name(f".{folder.name}-removed")
    shutil.rmtree(gone, ignore_errors=True)
    if folder.exists():
        folder.rename(gone)
        shutil.rmtree(gone)


class SaveSchedule:
    """Decides at each step whether to save after it: every so many steps, or by Young's rule
    (doi:10.1145/361147.361115), and at the latest after the mean time between interruptions."""

    def __init__(self, settings: Checkpoints) -> None:
        self._settings = settings
        self._saves_s: deque[float] = deque(maxlen=SAVES)

    def saved(self, seconds: float) -> None:
        """A save held the training up for so long."""
        self._saves_s.append(seconds)

    @property
    def interval_s(self) -> float | None:
        """Seconds of training between two saves; None while steps decide."""
        between_s = self._settings.interruption_every_s
        if between_s is None or not self._saves_s:
            return None
        return min(math.sqrt(2 * median(self._saves_s) * between_s), between_s)

    def due(self, step: int, since_save_s: float, stride: int = 1) -> bool:
        """Whether to save after `step`, `since_save_s` after the last save ended (or the training began). `stride`:
        steps since it could last be saved; what came due among them is due now."""
        if (interval := self.interval_s) is not None:
            return since_save_s >= interval
        return step // self._settings.every_steps > (step - stride) // self._settings.every_steps
