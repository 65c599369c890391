"""What the Dockerfiles do, done without a builder: their steps in an empty folder, with nothing that they do not copy.

Installing takes gigabytes and minutes, so those are variants; that what is copied runs by itself is asked each time.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.variants import one_and_variants

from .test_images import IMAGES, ROOT, ignored, parsed

ROOTS = re.compile(r"(?<![\w/.])/(?=(?:app|build|opt)\b)")
"""Of the paths in a step."""


PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(39, 4, -1)), "manylinux2014", "manylinux1", "linux")
"""Of wheels that run on Ubuntu 24.04."""


class Image(NamedTuple):
    """A Dockerfile whose `/` is a folder."""

    name: str
    root: Path

    def here(self, text: str) -> str:
        return ROOTS.sub(f"{self.root}/", text)

    def environment(self) -> dict[str, str]:
        """Of this process no more than how to reach an index."""
        index = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        path = f"{self.root}/opt/venv/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
        return {**index, "PATH": path, "HOME": str(self.root), "HF_HUB_OFFLINE": "1"}

    def copy(self, value: str) -> None:
        """A COPY out of the build's context."""
        *sources, target = shlex.split(value)
        if sources[0].startswith("--from="):
            return
        into = Path(self.here(target))
        for source in sources:
            assert not ignored(source), source
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, dirs_exist_ok=True, ignore=_left_out)
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, into)

    def run(self, command: str, **more: str) -> str:
        environment, at = {**self.environment(), **more}, self.root / "app"
        at.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["sh", "-ec", self.here(command)], cwd=at, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def steps(self, but: str = "") -> None:
        """Its COPY and, unless they hold the words `but`, its RUN steps, in their order."""
        for step in parsed((IMAGES / f"{self.name}.Dockerfile").read_text()).structure:
            if step["instruction"] == "COPY":
                self.copy(step["value"])
            elif step["instruction"] == "RUN" and not (but and but in step["value"]):
                self.run(step["value"].replace("python3.12", "python"))


def _left_out(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if ignored(str((Path(folder) / name).relative_to(ROOT)))]


NOT_INSTALLED = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in getattr(each, "__module__", "")]
"""
"""Takes an editable install of this checkout out of sight."""
STARTS = {
    "trainer": ("python -m pipeline.training --help", "python -m evals run --help"),
    "nemo-rl": ("python -m pipeline.training --help",),
    "dagster": (
        "python -c 'import jobs.definitions'",
        "python -m k8s.images.fetch_weights a b 2>&1 | grep -q ValueError",
        "python -m jobs.pt --help",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", one_and_variants(STARTS, "trainer"))
def test_what_is_copied_runs_by_itself(name: str, tmp_path: Path) -> None:
    image = Image(name, tmp_path)
    for step in parsed((IMAGES / f"{name}.Dockerfile").read_text()).structure:
        if step["instruction"] == "COPY":
            image.copy(step["value"])
    (tmp_path / "sitecustomize.py").write_text(NOT_INSTALLED)
    for command in STARTS[name]:
        image.run(command, PYTHONPATH=f"{tmp_path / 'app'}:{tmp_path}")


@pytest.mark.variant
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_dagsters_image_installs_and_starts(tmp_path: Path) -> None:
    """Its steps as they are, in an environment that nothing was installed into."""
    image = Image("dagster", tmp_path)
    image.steps()
    for command in (*STARTS["dagster"], "dagster --version", "python -c 'import dagster_k8s.launcher, mlflow, gcsfs'"):
        image.run(command)
    assert str(tmp_path) in image.run("python -c 'import torch; print(torch.__file__)'")


@pytest.mark.variant
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_trainers_image_finds_all_that_it_installs(tmp_path: Path) -> None:
    """Wheels for its Python and its machine under its pins. They are not installed: torch alone is gigabytes."""
    image = Image("trainer", tmp_path)
    target = "--dry-run --only-binary :all: --target /opt/x --python-version 3.12"
    target += "".join(f" --platform {each}_x86_64" for each in PLATFORMS)
    for step in parsed((IMAGES / "trainer.Dockerfile").read_text()).structure:
        if step["instruction"] == "COPY":
            image.copy(step["value"])
            for listed in (tmp_path / "build").glob("trainer.txt"):
                listed.write_text(listed.read_text().replace("\ndeepspeed\n", "\n"))  # the image builds it
        elif step["instruction"] == "RUN" and "pip install" in step["value"]:
            said = image.run(step["value"].replace("pip install", f"python -m pip install {target}"))
            assert "Would install" in said
