"""`pt clean` (`make clean`): shows what is in ./.dagster and ./data, and with `--confirm yes` removes both.

What answers for the data is kept: the audit log, the proofs of erasure and the list of the forgotten are moved to
`kept-<time>/`. Data roots that lie elsewhere are not touched; of a link the link alone goes. Needs the standard library
alone: there may be no environment any more.
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


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt clean", description=__doc__)
    options.add_argument("--confirm", default="", help='"yes": remove what is shown')
    return options


def main(arguments: Sequence[str]) -> int:
    confirm = parser().parse_args(arguments).confirm
    present = [folder for folder in FOLDERS if folder.is_symlink() or folder.exists()]
    if not present:
        print("There is nothing to remove: no .dagster/ and no data/ here.")
        return 0
    for folder in present:
        for part in [folder] if folder.is_symlink() else sorted(folder.iterdir()):
            files = part.rglob("*") if part.is_dir() and not part.is_symlink() else [part]
            print(f"{part!s:<40} {sum(file.lstat().st_size for file in files) / 1e6:>10,.1f} MB")
    if users := _users(present):
        print(
            "Nothing was removed. These processes work there; let them end, or end them, and try again:",
            *users,
            sep="\n",
        )
        return 1
    if confirm != "yes":
        print(f"Nothing was removed. To remove all of it for good, but for {', '.join(KEPT)}: make clean CONFIRM=yes")
        return 1
    data, kept = FOLDERS[1], Path(time.strftime("kept-%Y%m%d-%H%M%S"))
    for name in KEPT:
        if not data.is_symlink() and (data / name).exists():
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            (data / name).rename(kept / name)
    if kept.exists():
        print(f"Moved the audit log, the proofs of erasure and the list of the forgotten to {kept}/.")
    if (kept / layout.ERASED).exists():
        print(f"The source may have the forgotten still: pt governance reapply {kept / layout.ERASED}")
    for folder in present:
        folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
    print(f"Removed {' and '.join(f'{folder}/' for folder in present)}.")
    return 0


def _users(folders: list[Path]) -> list[str]:
    """Pid and command of each process that has a file of the folders open, as every worker of a run has (Linux)."""
    roots = [folder.resolve() for folder in folders]
    users: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is another user's
            opened = [descriptor.readlink() for descriptor in process.joinpath("fd").iterdir()]
            if any(path.is_relative_to(root) for path in opened for root in roots):
                command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                users.append(f"    {process.name:>8}  {command[:90].strip()}")
    return users


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
