"""Pages that are typed from nothing: docs/leave-a-closed-api.md to a verdict, docs/tutorial.md to a promotion."""

import hashlib
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.loop import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def blocks(page: str) -> list[str]:
    """What is to be typed on a page of docs."""
    return re.findall(r"^```\n(.*?)^```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.M | re.S)


COMMANDS = [block for block in blocks("leave-a-closed-api.md") if "curl" not in block]
LAUNCH = "dagster job launch"


def typed(folder: Path, *blocks: str) -> str:
    """What the blocks print, typed one after the other by one shell that stops at the first failure."""
    python = Path(sys.executable)
    lines = ["set -e", *blocks]
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    environment.pop("PREFERENCE_TUNING_OVERRIDES", None)
    shell = ["bash", "-c", "\n".join(lines)]
    done = subprocess.run(
        shell, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_page_makes_a_recipe_that_is_fine(tmp_path: Path) -> None:
    *before, last = COMMANDS
    validate, launch, *_ = last.splitlines()
    assert launch.startswith(LAUNCH)
    printed = typed(tmp_path, *before, validate)
    assert "training    export/train.jsonl: 1,200 rows for sft" in printed
    assert "suite validation (target): 400 items" in printed and "PROBLEM" not in printed


@pytest.mark.variant
def test_the_page_ends_in_a_verdict(tmp_path: Path) -> None:
    printed = typed(tmp_path, *COMMANDS)
    assert re.search(r"^  verdict +PASS: validation: improvement shown", printed, re.MULTILINE), printed


@pytest.mark.variant
def test_the_tutorial_ends_in_a_promotion(tmp_path: Path) -> None:
    for each in ("examples", ".env", "dagster.yaml", "pyproject.toml"):
        (tmp_path / each).symlink_to(ROOT / each)
    setup, *steps = blocks("tutorial.md")
    assert setup.startswith("make .venv/installed")
    printed = typed(tmp_path, *steps)
    assert re.search(r"^iteration +1 \(\w+\), begun .* promoted as version 1", printed, re.MULTILINE), printed


def test_the_examples_suite_is_the_one_of_its_recipe(tmp_path: Path) -> None:
    import_module("examples.own-tiny.make").write_suite(tmp_path / "suite.jsonl")
    digest = hashlib.sha256((tmp_path / "suite.jsonl").read_bytes()).hexdigest()
    assert f"sha256: {digest}" in (ROOT / "examples" / "own-tiny" / "recipe.yaml").read_text(encoding="utf-8")
