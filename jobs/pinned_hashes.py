"""Hashes beside the pins: `python -m jobs.pinned_hashes` writes hashes-*.txt anew from the constraints files.

For `pip install --no-deps --require-hashes -r`: each file holds a whole set, so nothing is resolved, and a package
whose content is another one than it was here is refused. pip asks PyPI alone, whatever else it is configured to ask,
and for metadata alone: no wheel is downloaded. torch is in files of its own. Its CPU build is not on PyPI: that one pip
looks for where it is configured to, and reads it whole. Writes versions and hashes, no address.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETS = {"cpu": ("3.11",), "gpu": ("3.11", "3.12")}
"""Constraints file, by the end of its name, to the Pythons that it is for."""
GLIBC = range(39, 4, -1)
"""Minor versions of glibc whose wheels are taken, the newest first: those of the image's Debian and older ones."""
APART = ("torch",)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;#]+)")
_MISSING = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)==")
Hashes = dict[str, set[str]]


def pins(constraints: str) -> dict[str, str]:
    """Package to version, of the text of a constraints file."""
    return {match[1]: match[2] for line in constraints.splitlines() if (match := _PIN.match(line))}


def hashes_of(report: Mapping[str, object]) -> Hashes:
    """`name==version` to sha256, of pip's installation report. Raises ValueError for an archive without one."""
    result: Hashes = {}
    for each in report["install"]:  # pyright: ignore[reportGeneralTypeIssues]
        name = f"{each['metadata']['name']}=={each['metadata']['version']}"
        digest = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(f"The index gives no sha256 for {name}. Use one that does.")
        result.setdefault(name, set()).add(digest)
    return result


def text_of(hashes: Mapping[str, Iterable[str]], head: str) -> str:
    """As pip reads it, in the order of names."""
    lines = [f"# {head}"]
    for name in sorted(hashes, key=str.lower):
        lines += [" \\\n    ".join([name, *(f"--hash=sha256:{digest}" for digest in sorted(hashes[name]))])]
    return "\n".join(lines) + "\n"


def asked(wanted: Mapping[str, str], python: str, isolated: bool = True) -> tuple[Hashes, list[str]]:
    """The hashes of the wheels for that Python on Linux x86-64, and the packages that have none.

    `isolated`: of PyPI alone. Raises ValueError for what pip cannot do.
    """
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms += [f"--platform={name}_x86_64" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    left, without = dict(wanted), list[str]()
    # Otherwise a configured index or folder could answer in PyPI's place, and a folder's wheels are read whole.
    alone = (
        ["env", "-u", "PIP_FIND_LINKS", "-u", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE=/dev/null"] if isolated else []
    )
    with tempfile.TemporaryDirectory() as folder:
        file, report = Path(folder, "wanted.txt"), Path(folder, "report.json")
        command = [*alone, sys.executable, "-m", "pip", "install", "--dry-run", "--quiet"]
        command += ["--no-deps", "--ignore-installed"]
        command += ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
        command += ["--target", folder, "--report", str(report), "-r", str(file)]
        while left:
            file.write_text("".join(f"{name}=={version}\n" for name, version in left.items()))
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return hashes_of(json.loads(report.read_text())), without
            missing = _MISSING.search(done.stderr)
            if missing is None or missing[1] not in left:
                raise ValueError(f"pip could not resolve the set: {done.stderr.strip()[-2000:]}")
            without.append(f"{missing[1]}=={left.pop(missing[1])}")
    return {}, without


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
