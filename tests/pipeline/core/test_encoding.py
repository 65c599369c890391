"""A host whose locale is not UTF-8, with a real locale: texts stay what they are in records, pipes and outputs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
TEXT = "Größe → 日本"
PROGRAM = """
import locale, sys
from pathlib import Path
from pipeline.core.processes import Child, piped
from pipeline.core.redaction import guard_output
from pipeline.core.storage import DatasetRef, Store
assert locale.getpreferredencoding(False) == "ISO-8859-1"
text, store = Path(sys.argv[1], "text").read_bytes().decode(), Store(sys.argv[1])
store.write("ref.json", DatasetRef(uri=text, rows=1, digest=""))
print_it = f"print({ascii(text)}, flush=True)"
with piped("The echo", [sys.executable, "-c", "while True: print(input(), flush=True)"]) as echo:
    echoed = echo.ask(text).rstrip()
with Child([sys.executable, "-c", print_it], 1.0) as child:
    printed = "".join(child.lines()).rstrip()
guard_output()
print(store.read("ref.json", DatasetRef).uri, echoed, printed, sep="\\n")
"""


@pytest.fixture
def latin_1(tmp_path: Path) -> dict[str, str]:
    """The environment with such a locale."""
    name, folder = "en_US.ISO-8859-1", tmp_path / "locales"
    folder.mkdir()
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / name)]
    try:
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no locale can be made ({error}): apt-get install locales")
    return {**os.environ, "LC_ALL": name, "LOCPATH": str(folder)}


@pytest.mark.situation("20-latin-1-locale", "right")
def test_texts_stay_the_same_in_another_locale(tmp_path: Path, latin_1: dict[str, str]) -> None:
    (tmp_path / "text").write_bytes(TEXT.encode())
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=latin_1, stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().splitlines() == [TEXT, TEXT, TEXT]
