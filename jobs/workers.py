"""The files by which a run's worker on this machine is found without Dagster: `<run>.pid` has its pid and start,
`<run>.json` which job it runs on which data root."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import yaml

from pipeline.core.storage import Record, write_atomically


class RunNote(Record):
    """What a worker is at."""

    run: str
    job: str
    data_root: str
    """Absolute; "" of a job that names none."""


class WorkerFiles:
    """The files of one launcher's workers, in its `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def remember(self, run: str, pid: int) -> None:
        self.pid_file(run).write_text(f"{pid} {started(pid)}")

    def note(self, note: RunNote) -> None:
        """Before the worker is begun, so that whoever finds a live one knows what it is at."""
        write_atomically(self.directory / f"{note.run}.json", note.model_dump_json())

    def pid_file(self, run: str) -> Path:
        return self.directory / f"{run}.pid"

    def pid(self, run: str) -> int | None:
        """The pid of the run's worker, also after its end; None for a run that has none here."""
        with suppress(FileNotFoundError, ValueError, IndexError):  # not there yet, or not written yet
            return int(self.pid_file(run).read_text().split(maxsplit=1)[0])
        return None

    def is_alive(self, run: str) -> bool:
        pid = self.pid(run)
        since = "" if pid is None else started(pid)
        return bool(since) and self.pid_file(run).read_text() == f"{pid} {since}"

    def at_work(self, data_root: Path) -> list[RunNote]:
        """The runs on that data root whose worker is alive, the newest first."""
        files = sorted(self.directory.glob("*.pid"), key=lambda path: path.stat().st_mtime, reverse=True)
        notes = [self._read(path.stem) for path in files if self.is_alive(path.stem)]
        return [note for note in notes if note is not None and Path(note.data_root) == data_root]

    def _read(self, run: str) -> RunNote | None:
        with suppress(FileNotFoundError, ValueError):
            return RunNote.model_validate_json((self.directory / f"{run}.json").read_text())
        return None


def worker_files(instance: Path) -> WorkerFiles | None:
    """Of the instance that a `dagster.yaml` describes; None where its runs are not processes of this machine."""
    try:
        settings = yaml.safe_load(instance.read_text())["run_launcher"]
        directory = settings["config"]["directory"] if settings["module"] == "jobs.launcher" else None
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return None
    return WorkerFiles(instance.parent / directory) if isinstance(directory, str) else None


def started(pid: int) -> str:
    """When a process was started, as the system counts; empty when there is none, or only a zombie.

    With the pid it names one process. A command line does not: for a moment after `exec` it is empty.
    """
    if sys.platform == "linux":
        with suppress(FileNotFoundError, ProcessLookupError):
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return "" if state == "Z" else fields[18]
        return ""
    shown = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True).stdout
    state, _, since = shown.strip().partition(" ")
    return "" if state.startswith("Z") else since.strip()
