"""`pt clean` (`make clean`): shows what is in ./.dagster and ./data, and removes both once a word was typed.

What answers for the data is kept: the audit log, the proofs of erasure and the list of the forgotten are moved to
`kept-<time>/`. Data roots that lie elsewhere are not touched. Needs the standard library alone: there may be no
environment any more.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.core import layout

FOLDERS = (Path(".dagster"), Path("data"))
KEPT = (layout.AUDIT, layout.ERASURES, layout.ERASED, layout.MARKS)
WORD = "delete"


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt clean", description=__doc__)
    options.add_argument("--confirm", default="", help='"yes": remove it without asking')
    return options


def main(arguments: Sequence[str]) -> int:
    confirm = parser().parse_args(arguments).confirm
    present = [folder for folder in FOLDERS if folder.is_symlink() or folder.exists()]
    if not present:
        print("There is nothing to remove: no .dagster/ and no data/ here.")
        return 0
    for folder in present:
        print(f"{folder}/  {_size(folder):,.1f} MB")
        if folder.is_symlink():
            print(f"    a link to {folder.readlink()}: the link is removed, not what it points to")
            continue
        for part in sorted(folder.iterdir()):
            kept = "  is kept" if folder.name == "data" and part.name in KEPT else ""
            print(f"    {part.name:<20} {_size(part):>10,.1f} MB{kept}")
    if users := _users(present):
        print("Nothing was removed. These processes work there; let them end, or end them, and try again:")
        for pid, command in users:
            print(f"    {pid:>8}  {command}")
        return 1
    if confirm != "yes" and not _is_typed():
        return 1
    if kept := _keep():
        print(f"Moved the audit log, the proofs of erasure and the list of the forgotten to {kept}/.")
        if (kept / layout.ERASED).exists():
            print(f"The source may have the forgotten still: pt governance reapply {kept / layout.ERASED}")
    for folder in present:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)
    print(f"Removed {' and '.join(f'{folder}/' for folder in present)}.")
    return 0


def _is_typed() -> bool:
    if not sys.stdin.isatty():
        print("Nothing was removed: there is no terminal to ask on. If all of it is to go: make clean CONFIRM=yes")
        return False
    try:
        typed = input(f'Every iteration, model and trace listed above goes for good. Type "{WORD}" to remove them: ')
    except (EOFError, KeyboardInterrupt):
        typed = ""
        print()
    if typed.strip() != WORD:
        print(f'Nothing was removed. To remove it, type "{WORD}".')
        return False
    return True


def _keep() -> Path | None:
    """Move what is kept out of ./data, under the names that it has below a data root; where to, if there was any."""
    data = FOLDERS[1]
    parts = [] if data.is_symlink() else [data / name for name in KEPT if (data / name).exists()]
    if not parts:
        return None
    kept = Path(time.strftime("kept-%Y%m%d-%H%M%S"))
    kept.mkdir()
    for part in parts:
        target = kept / part.relative_to(data)
        target.parent.mkdir(exist_ok=True)
        part.rename(target)
    return kept


def _users(folders: list[Path]) -> list[tuple[int, str]]:
    """Pid and command of each process that has a file of the folders open, as every worker of a run has (Linux)."""
    roots = [folder.resolve() for folder in folders]
    users: list[tuple[int, str]] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is somebody else's
            opened = [descriptor.readlink() for descriptor in process.joinpath("fd").iterdir()]
            if any(path.is_relative_to(root) for path in opened for root in roots):
                command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                users.append((int(process.name), command[:90].strip()))
    return users


def _size(path: Path) -> float:
    """Megabytes of what lies there; what links point to is not counted."""
    files = [path] if path.is_symlink() or path.is_file() else [p for p in path.rglob("*") if not p.is_dir()]
    return sum(file.lstat().st_size for file in files) / 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
