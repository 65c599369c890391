"""The files by which a run's worker on this machine is found without Dagster: one for each run, `<run>.json`."""

from contextlib import suppress
from pathlib import Path

from pipeline.core.storage import Record, write_atomically

WORKERS = Path(".dagster/workers")
"""Where `dagster.yaml` has the files, below its own directory."""


class Worker(Record):
    """The process of a run. `start` tells it from another one under its pid."""

    run: str
    job: str
    data_root: str
    """Absolute; "" of a job that names none."""
    pid: int
    start: int | None
    """As the system counts; None of one that had ended at once."""

    @property
    def is_alive(self) -> bool:
        return self.start is not None and process_start(self.pid) == self.start


class WorkerFiles:
    """The files of one launcher's workers, in its `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(self, run: str, job: str, data_root: str, pid: int) -> None:
        worker = Worker(run=run, job=job, data_root=data_root, pid=pid, start=process_start(pid))
        write_atomically(self.directory / f"{run}.json", worker.model_dump_json())

    def find(self, run: str) -> Worker | None:
        """The run's worker, also after its end; None for a run that has none here."""
        with suppress(FileNotFoundError):
            return Worker.model_validate_json((self.directory / f"{run}.json").read_bytes())
        return None

    def at_work(self, data_root: Path) -> list[Worker]:
        """The living workers on that data root, the newest first."""
        files = sorted(self.directory.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        workers = [self.find(path.stem) for path in files]
        return [each for each in workers if each and Path(each.data_root) == data_root and each.is_alive]


def process_start(pid: int) -> int | None:
    """When the process started, in clock ticks since the machine's start; None where there is none, or a zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        fields = text.rpartition(")")[2].split()  # proc(5), from field 3 on
        return None if fields[0] in "ZX" else int(fields[19])
    return None
