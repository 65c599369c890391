"""Hashes beside the pins: `python -m jobs.pinned_hashes` writes hashes-*.txt anew from the constraints files.

For `pip install --no-deps --require-hashes -r`: each file holds a whole set, so nothing is resolved, and a package
whose content is another one than it was here is refused. pip's own finder asks PyPI alone, whatever else it is
configured to ask, and takes the digests of its listing: no wheel is downloaded, and CUDA's are gigabytes. torch is in
files of its own. Its CPU build is not on PyPI: that one is looked for where pip is configured to, and read where it
lies. Writes versions and hashes, no address.
"""

import os
import re
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.storage import digest_file

ROOT = Path(__file__).parent.parent
SETS = {"cpu": ("3.11",), "gpu": ("3.11", "3.12")}
"""Constraints file, by the end of its name, to the Pythons that it is for."""
GLIBC = range(39, 4, -1)
"""Minor versions of glibc whose wheels are taken, the newest first: those of the image's Debian and older ones."""
APART = ("torch",)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;#]+)")
Hashes = dict[str, set[str]]


def pins(constraints: str) -> dict[str, str]:
    """Package to version, of the text of a constraints file."""
    return {match[1]: match[2] for line in constraints.splitlines() if (match := _PIN.match(line))}


def digest_of(link: Any) -> str:
    """sha256 of a wheel, as the index lists it; of a file of this machine by reading it. Raises ValueError."""
    if link.hash_name == "sha256" and re.fullmatch("[0-9a-f]{64}", link.hash or ""):
        return str(link.hash)
    if link.is_file:
        return digest_file(Path(link.file_path))
    raise ValueError(f"The index gives no sha256 for {link.filename}. Use one that does.")


def text_of(hashes: Mapping[str, Iterable[str]], head: str) -> str:
    """As pip reads it, in the order of names."""
    lines = [f"# {head}"]
    for name in sorted(hashes, key=str.lower):
        lines += [" \\\n    ".join([name, *(f"--hash=sha256:{digest}" for digest in sorted(hashes[name]))])]
    return "\n".join(lines) + "\n"


@contextmanager
def finder(python: str, isolated: bool) -> Generator[Any]:
    """pip's finder of wheels for that Python on Linux x86-64. `isolated`: of PyPI alone."""
    from pip._internal.cli.cmdoptions import make_target_python
    from pip._internal.commands import create_command

    before = dict(os.environ)
    if isolated:  # otherwise a configured index or folder could answer in PyPI's place
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
            os.environ.pop(name, None)
        os.environ["PIP_CONFIG_FILE"] = os.devnull
    try:
        command: Any = create_command("download")
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC]
        platforms += [f"--platform={name}_x86_64" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
        words = ["--no-deps", "--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
        options, _ = command.parse_args(words)
        with command.main_context():
            yield command._build_package_finder(
                options=options, session=command.get_default_session(options), target_python=make_target_python(options)
            )
    finally:
        os.environ.clear()
        os.environ.update(before)


def asked(wanted: Mapping[str, str], python: str, isolated: bool = True) -> tuple[Hashes, list[str]]:
    """The hashes of the wheels for that Python, and the packages that have none. Raises ValueError for a wheel without
    a sha256."""
    from pip._vendor.packaging.specifiers import SpecifierSet

    hashes: Hashes = {}
    without: list[str] = []
    with finder(python, isolated) as wheels:
        for name, version in wanted.items():
            best = wheels.find_best_candidate(name, SpecifierSet(f"=={version}")).best_candidate
            if best is None:
                without.append(f"{name}=={version}")
            else:
                hashes.setdefault(f"{name}=={version}", set()).add(digest_of(best.link))
    return hashes, without


def main(arguments: Sequence[str]) -> int:
    for name in arguments or SETS:
        wanted = pins((ROOT / f"constraints-{name}.txt").read_text())
        parts = {"": {k: v for k, v in wanted.items() if k not in APART}}
        parts["-torch"] = {k: v for k, v in wanted.items() if k in APART}
        for part, packages in parts.items():
            hashes: Hashes = {}
            without = set[str]()
            for python in SETS[name]:
                of_python, lacking = asked(packages, python, isolated=(name, part) != ("cpu", "-torch"))
                without.update(lacking)
                for package, digests in of_python.items():
                    hashes.setdefault(package, set()).update(digests)
            head = f"Written by python -m jobs.pinned_hashes, for Python {' and '.join(SETS[name])} on Linux x86-64."
            if without:
                head += f" Without a wheel: {', '.join(sorted(without))}."
            (ROOT / f"hashes-{name}{part}.txt").write_text(text_of(hashes, head))
            print(f"hashes-{name}{part}.txt: {len(hashes)} packages, {len(without)} without a wheel")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
