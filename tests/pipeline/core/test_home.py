"""A user id without a name, a home or a variable HOME, as containers have: what needs no home works, and nothing makes
a folder named ~."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
NAMES = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
PROGRAM = """
import sys
import pipeline
import mlflow  # asks for ~ as it is imported
from assets.environment import environment
from pipeline.registry.runs import mlflow_client
from pipeline.rollout.policy import account
print(account(), environment().mark_keys.place, mlflow_client(sys.argv[1]).create_run("0").info.user_id)
"""


@pytest.mark.situation("19-user-without-a-name", "right")
def test_a_user_id_without_a_name_and_a_home_works(tmp_path: Path) -> None:
    nobody = ["unshare", "-U", "--map-user=12345", "--map-group=12345"]
    try:
        subprocess.run([*nobody, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no user id without a name can be had ({error})")
    bare = {name: value for name, value in os.environ.items() if name not in (*NAMES, "PREFERENCE_TUNING_MARK_KEYS")}
    command = [*nobody, sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/mlflow.db"]
    bare["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=tmp_path, env=bare, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    assert done.stdout.split()[:3] == ["uid", "12345", "/nonexistent/.config/preference-tuning/mark-keys"]
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
