"""`dagster job launch` where no shell says where it is: cron, programs that set a working directory, make -C."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loop import ROOT

pytestmark = pytest.mark.slow

DAGSTER = Path(sys.executable).parent / "dagster"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    root.mkdir()
    for source in (ROOT / ".env", ROOT / "dagster.yaml", Path(__file__).with_name("toy_definitions.py")):
        shutil.copy(source, root)
    (root / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "toy_definitions"\n')
    return root


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def run(cwd: Path, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The line as cron runs it: by sh, with hardly an environment."""
    settings = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["env", "-i", *(f"{name}={value}" for name, value in (settings | variables).items()), "/bin/sh", "-c", line]
    return subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.mark.variant
@pytest.mark.parametrize("of_shell", ["", "env -u PWD ", "env PWD={elsewhere} "])
def test_launch_works_whatever_the_shell_says(of_shell: str, clone: Path, elsewhere: Path) -> None:
    line = f"cd {clone} && {of_shell.format(elsewhere=elsewhere)}{DAGSTER} job launch -j toy"
    done = run(elsewhere, line, HOME="/nonexistent")
    assert done.returncode == 0 and " SUCCESS in " in done.stdout, done.stdout
    assert (clone / ".dagster" / "storage").is_dir()
    assert list(elsewhere.iterdir()) == []


def test_launch_in_another_directory_says_where(clone: Path, elsewhere: Path) -> None:
    done = run(
        elsewhere,
        f"{DAGSTER} job launch -m toy_definitions -j toy",
        DAGSTER_HOME=str(clone),
        PYTHONPATH=f"{ROOT}:{clone}",
    )
    assert done.returncode != 0
    assert "There is no dagster.yaml here" in done.stdout
    assert "cd " in done.stdout
    assert "Traceback" not in done.stdout
