"""The Python environments of evaluation libraries, and one call into them: plain JSON in, plain JSON out.

Owns the process: it ends with the caller, also where the caller is killed. Refuses to know what a script does. Nothing
is installed from here: who evaluates makes the environment from the file of its tested versions.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

START = Path(__file__).parent / "scripts" / "start.py"
TAIL_LINES = 25


class LibraryEnvironment(NamedTuple):
    """Where a library is. `python` is "" where nobody named one; `variable` is how the pipeline is told."""

    library: str
    python: str
    variable: str
    constraints: str

    def call(self, module: str, function: str, **arguments: Any) -> Any:
        """What that function of `scripts/<module>.py` returns.

        `arguments` and the result are plain JSON. Raises ValueError with an instruction where there is no such
        environment or the script refuses, RuntimeError with its last lines where it ends otherwise.
        """
        self.check()
        with tempfile.TemporaryDirectory(prefix=f"{self.library}-") as folder:
            reply, output = Path(folder, "reply.json"), Path(folder, "output")
            request = {"module": module, "function": function, "arguments": arguments, "reply": str(reply)}
            with output.open("wb") as stream:
                # Its input stays open while it works: when that closes, its caller is gone, and it ends.
                process = subprocess.Popen(
                    [self.python, "-I", str(START)], stdin=subprocess.PIPE, stdout=stream, stderr=stream, cwd=folder
                )
                assert process.stdin is not None
                try:
                    _send(process.stdin, json.dumps(request).encode() + b"\n")
                    code = process.wait()
                finally:
                    process.kill()
                    process.wait()
                    _close(process.stdin)
            if code or not reply.is_file():
                tail = "\n".join(output.read_text(errors="replace").splitlines()[-TAIL_LINES:])
                raise RuntimeError(f"{self.library} at {self.python} ended (exit code {code}); its last lines:\n{tail}")
            answered = json.loads(reply.read_text())
        if "refused" in answered:
            raise ValueError(answered["refused"])
        return answered["result"]

    def check(self) -> None:
        """Raise ValueError, with how to make one, where there is no such environment. Starts nothing."""
        make = (
            f"Make an environment for it (python -m venv .venv-{self.library}; .venv-{self.library}/bin/pip install "
            f"-r {self.constraints}) and set {self.variable} to its Python, .venv-{self.library}/bin/python"
        )
        if not self.python:
            raise ValueError(f"{self.library} runs in an environment of its own, and none is named. {make}.")
        if not Path(self.python).is_file():
            raise ValueError(f"There is no Python for {self.library} at {self.python}. {make}.")


class LibraryEnvironments(NamedTuple):
    """Both libraries' environments, as a run has them."""

    inspect: LibraryEnvironment
    lm_eval: LibraryEnvironment


def library_environments(inspect_python: str = "", lm_eval_python: str = "") -> LibraryEnvironments:
    return LibraryEnvironments(
        LibraryEnvironment("inspect", inspect_python, "INSPECT_PYTHON", "constraints/inspect.txt"),
        LibraryEnvironment("lm-eval", lm_eval_python, "LM_EVAL_PYTHON", "constraints/lm-eval.txt"),
    )


def named_environments(environment: Mapping[str, str]) -> LibraryEnvironments:
    """As INSPECT_PYTHON and LM_EVAL_PYTHON say."""
    return library_environments(environment.get("INSPECT_PYTHON", ""), environment.get("LM_EVAL_PYTHON", ""))


def _send(stream: IO[bytes], content: bytes) -> None:
    with suppress(BrokenPipeError):  # it ended at once: its exit code and its output say why
        stream.write(content)
        stream.flush()


def _close(stream: IO[bytes]) -> None:
    with suppress(BrokenPipeError):
        stream.close()
