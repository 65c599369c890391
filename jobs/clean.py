"""`pt clean` (`make clean`): shows ./.dagster and every data root below this folder, and with `--confirm yes` removes
what runs wrote there.

What answers for the data is kept: the audit log, the proofs of erasure and the list of the forgotten are moved to
`kept-<time>/`. What no run wrote, such as a suite of your own, is left where it is. Data roots that lie elsewhere are
not touched; of a link the link alone goes. Needs the standard library alone: there may be no environment any more.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.core import layout

INSTANCE, DATA = Path(".dagster"), Path("data")
SIGNS = (layout.AUDIT_LOG, layout.LATEST, layout.WATERMARK)
"""Files that tell a data root of any name; `data` is one without them."""
WRITTEN = (*sorted(layout.OWN), layout.PRODUCTION, f"{layout.SUITES}/*-seed-*-items-*.jsonl")
"""What runs write below a data root; of its suites those of the embedded world."""
KEPT = (layout.AUDIT, layout.ERASURES, layout.ERASED, layout.MARKS)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt clean", description=__doc__)
    options.add_argument("--confirm", default="", help='"yes": remove what is shown')
    return options


def main(arguments: Sequence[str]) -> int:
    confirm = parser().parse_args(arguments).confirm
    roots = list(_data_roots())
    parts = [each for each in (INSTANCE, DATA) if each.is_symlink()]
    parts += sorted(INSTANCE.iterdir()) if INSTANCE.is_dir() and INSTANCE not in parts else []
    parts += [part for root in reversed(roots) for pattern in WRITTEN for part in root.glob(pattern)]
    if not parts:
        print("There is nothing to remove: no .dagster/ and no data root here.")
        return 0
    print(f"Data roots: {', '.join(map(str, roots)) or 'none'}")
    for part in parts:
        files = part.rglob("*") if part.is_dir() and not part.is_symlink() else [part]
        print(f"{part!s:<40} {sum(file.lstat().st_size for file in files) / 1e6:>10,.1f} MB")
    if users := _users(parts):
        print("Nothing was removed. These processes work there; let them end, or end them, and try again:")
        print(*users, sep="\n")
        return 1
    if confirm != "yes":
        print(f"Nothing was removed. To remove all of it for good, but for {', '.join(KEPT)}: make clean CONFIRM=yes")
        return 1
    kept = Path(time.strftime("kept-%Y%m%d-%H%M%S"))
    for path in (root / name for root in roots for name in KEPT if (root / name).exists()):
        (kept / path).parent.mkdir(parents=True, exist_ok=True)
        path.rename(kept / path)
        print(f"Kept as {kept / path}")
    for path in kept.glob(f"**/{layout.ERASED}"):
        print(f"The source may have the forgotten still: pt governance reapply {path}")
    for part in parts:
        shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink(missing_ok=True)
    for folder in (INSTANCE, *(root / layout.SUITES for root in roots), *reversed(roots)):
        with suppress(OSError):  # it holds what no run wrote, or is not there
            folder.rmdir()
    print(f"Removed what is shown above, of {', '.join(map(str, (INSTANCE, *roots)))}.")
    if left := [str(path) for root in roots if root.is_dir() for path in root.iterdir() if path not in roots]:
        print(f"Left, for no run wrote it: {', '.join(left)}")
    return 0


def _data_roots() -> Iterator[Path]:
    """Those below the working directory, an outer one before those in it; links are not followed."""
    for folder, names, _ in os.walk("."):
        names[:] = sorted(each for each in names if not each.startswith((".dagster", ".git", ".venv", "kept-")))
        root = Path(folder)
        if root == DATA or any((root / sign).is_file() for sign in SIGNS):
            yield root


def _users(parts: list[Path]) -> list[str]:
    """Pid and command of each process that has a file of these open, as every worker of a run has (Linux)."""
    roots = [part.resolve() for part in parts]
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
