"""Servers whose step was killed before it could end them: written down while they live, ended by the next start.

One file for each server, kept by its watcher. A process is ended only where pid and start are those on file and nobody
who started it lives: a pid that another program has meanwhile is left alone, and so is what another machine wrote.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from pipeline.core.processes import end_sessions, process_start, session_starts
from pipeline.core.storage import Record, write_atomically

NAMES = "server-*.json"


class ServerGroup(Record):
    """A session of processes and who wants it. Processes by pid, with the start of each (`process_start`)."""

    machine: str
    owner: dict[int, int]
    session: int
    members: dict[int, int]

    def lives(self) -> bool:
        """Whether the session is still the one on file. One member proves it: its number is not free before."""
        return bool(self.members.items() & session_starts(self.session).items())


def group_of(owner: int, session: int) -> ServerGroup:
    """The session as it is now."""
    return ServerGroup(
        machine=machine(), owner={owner: process_start(owner) or 0}, session=session, members=session_starts(session)
    )


def write_group(path: Path, group: ServerGroup) -> None:
    write_atomically(path, group.model_dump_json())


def end_leftovers(folder: Path, grace_s: float, log: Callable[[str], None]) -> None:
    """End every server on file whose owner is no more."""
    for path in sorted(folder.glob(NAMES)):
        try:
            group = ServerGroup.model_validate_json(path.read_bytes())
        except FileNotFoundError:  # its watcher was faster
            continue
        except ValueError:
            log(f"serving: {path} names no server: it is left alone. Delete it.")
            continue
        if group.machine == machine() and not any(process_start(pid) == at for pid, at in group.owner.items()):
            end_group(path, group, grace_s, log)


def end_group(path: Path, group: ServerGroup, grace_s: float, log: Callable[[str], None]) -> None:
    """End what lives of the session, and forget it."""
    if group.lives():
        log(f"serving: ending the server that was left behind by process {min(group.owner)} ({path.name})")
        end_session(group.session, grace_s)
    path.unlink(missing_ok=True)


def end_session(leader: int, grace_s: float) -> None:
    """End every process of a session; without their leader, who would pass SIGTERM on, at once."""
    end_sessions([leader], signal.SIGTERM, grace_s if process_start(leader) is not None else 0.0)


def machine() -> str:
    """Where a pid means something: this start of this machine, and the container's own numbering."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
