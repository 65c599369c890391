"""docs/leave-a-closed-api.md, typed from nothing: files, recipe, check, and on to the verdict."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loop import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BLOCKS = re.findall(
    r"^```\n(.*?)^```", (ROOT / "docs" / "leave-a-closed-api.md").read_text(encoding="utf-8"), re.M | re.S
)
COMMANDS = [block for block in BLOCKS if "curl" not in block]
LAUNCH = "dagster job launch"


def typed(folder: Path, *blocks: str) -> str:
    """What the blocks print, typed one after the other by one shell that stops at the first failure."""
    python = Path(sys.executable)
    lines = ["set -e", f'pt() {{ {python} -m jobs.pt "$@"; }}', *blocks]
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
