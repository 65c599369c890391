"""Calls into another environment: what comes back, and what is said where nothing can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evals.libraries import environment
from evals.libraries.environment import library_environments

SCRIPTS = {
    "works.py": "def double(number):\n    print('noise of a library')\n    return {'doubled': 2 * number}\n",
    "refuses.py": "from start import Refusal\n\ndef go():\n    raise Refusal('Put a file there.')\n",
    "breaks.py": "def go():\n    raise RuntimeError('a fault of the library')\n",
    "sleeps.py": "import time\n\ndef go():\n    print('begun', flush=True)\n    time.sleep(600)\n",
}


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real start.py beside scripts of this test."""
    for name, text in {**SCRIPTS, "start.py": environment.START.read_text()}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(environment, "START", tmp_path / "start.py")
    return tmp_path


@pytest.mark.usefixtures("scripts")
def test_call_returns_what_the_script_returns() -> None:
    inspect, _ = library_environments(sys.executable)
    assert inspect.call("works", "double", number=21) == {"doubled": 42}


@pytest.mark.usefixtures("scripts")
def test_a_refusal_arrives_as_it_was_written() -> None:
    inspect, _ = library_environments(sys.executable)
    with pytest.raises(ValueError, match=r"^Put a file there\.$"):
        inspect.call("refuses", "go")


@pytest.mark.usefixtures("scripts")
def test_a_fault_arrives_with_the_last_lines() -> None:
    inspect, _ = library_environments(sys.executable)
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1.*a fault of the library"):
        inspect.call("breaks", "go")


@pytest.mark.parametrize(("python", "word"), [("", "none is named"), ("/nowhere/python", "no Python for lm-eval")])
def test_a_missing_environment_says_how_to_make_one(python: str, word: str) -> None:
    _, lm_eval = library_environments(lm_eval_python=python)
    with pytest.raises(ValueError, match=rf"(?s){word}.*-r constraints/lm-eval.txt.*LM_EVAL_PYTHON"):
        lm_eval.call("works", "double", number=1)


def test_a_script_ends_with_its_caller(scripts: Path) -> None:
    request = {"module": "sleeps", "function": "go", "arguments": {}, "reply": str(scripts / "reply")}
    command = [sys.executable, "-I", str(scripts / "start.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"begun\n"
        process.stdin.close()  # as the kernel does for a caller that was killed
        assert process.wait(60) == 3


def test_scripts_import_nothing_of_this_project() -> None:
    ours = ("import pipeline", "import evals", "from pipeline", "from evals")
    texts = [path.read_text() for path in environment.START.parent.glob("*.py")]
    assert texts
    assert not [line for text in texts for line in text.splitlines() if line.strip().startswith(ours)]
