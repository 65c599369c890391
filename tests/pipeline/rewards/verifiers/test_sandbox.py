# ruff: noqa: E501 - a program in one string reads better than a wrapped one
import os
import platform
import re
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pipeline.rewards.verifiers import code as code_check
from pipeline.rewards.verifiers.confined import confinement
from pipeline.rewards.verifiers.outcome import Grade, Outcome
from tests.processes import children, is_alive, wait_for

ROOT = Path(code_check.__file__).parents[3]
ADD = "def add(a, b): return a + b"
TESTS = "assert add(1, 2) == 3"


def run(code: str, tests: str = TESTS, *, timeout_s: float = 20.0, landlock: bool = True) -> Grade:
    return code_check._examined(textwrap.dedent(code), tests, True, timeout_s, 512, landlock)


def said(body: str) -> str:
    """What a function with `body` returns, or raises, inside the sandbox."""
    code = "def say():\n" + textwrap.indent(textwrap.dedent(body), "    ")
    verdict = run(code, "try:\n    said = say()\nexcept Exception as error:\n    said = repr(error)\nassert 0, said")
    assert verdict.outcome == "wrong", verdict
    return verdict.answer.removeprefix("AssertionError: ").removesuffix(" | assert 0, said")


FORBIDDEN = {
    "a socket": "import socket; return socket.socket()",
    "a unix socket": "import socket; return socket.socket(socket.AF_UNIX)",
    "fork": "import os; return os.fork()",
    "a shell": "import os; return os.popen('id').read()",
    "kill": "import os; return os.kill(1, 9)",
    "pidfd": "import os; return os.pidfd_open(1)",
    "own a descriptor's signals": "import fcntl, os; return fcntl.fcntl(0, fcntl.F_SETOWN, 1)",
    "ioctl": "import fcntl; return fcntl.ioctl(0, 0x5412, b'x')",
    "raise a limit": "import resource; return resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
    "memfd": "import os; return os.memfd_create('x')",
    "shared memory": "from multiprocessing import shared_memory as s; return s.SharedMemory(create=True, size=9).name",
    "write to /tmp": "return open('/tmp/escaped', 'w')",
    "write to /dev/shm": "return open('/dev/shm/escaped', 'w')",
    "write to the library": "import json; return open(json.__file__, 'a')",
    "truncate": "import os; return os.truncate('/etc/hostname', 0)",
    "passwords": "return open('/etc/passwd').read()",
    "the root": "import os; return os.listdir('/')",
    "its environment": "return open('/proc/self/environ').read()",
    "its memory": "return open('/proc/self/mem', 'rb')",
    "its parent": f"return open('/proc/{os.getpid()}/environ').read()",
    "this project": f"return open({str(ROOT / 'pyproject.toml')!r}).read()",
    "a device": "return open('/dev/null', 'w')",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_completion_is_refused(what: str) -> None:
    assert said(FORBIDDEN[what]).startswith("PermissionError")


def test_secrets_of_this_process_are_not_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    seen = said("import os, sys; return sorted(os.environ), sys.argv, [p for p in sys.path if 'site-packages' in p]")
    assert "API_KEY" not in seen
    assert "site-packages" not in seen


def test_the_tests_are_nowhere_in_the_process_of_the_completion() -> None:
    code = """
        import gc, sys
        def look(word):
            found = [repr(thing) for thing in gc.get_objects() if isinstance(thing, (dict, list, tuple)) and len(thing) < 999]
            frame = sys._getframe(1)
            while frame:
                found.append(repr(frame.f_locals))
                frame = frame.f_back
            return word.swapcase() in " ".join(found)
    """
    assert run(code, "secret = 'sEsAmE'\nassert look('SeSaMe') is False").outcome == "correct"
    assert run(code + "    secret = ['sEsAmE']\n", "assert look('SeSaMe') is True").outcome == "correct"


PURE = """
abc array ast base64 bisect binascii calendar cmath collections collections.abc contextlib copy csv ctypes dataclasses
datetime decimal difflib enum fractions functools graphlib hashlib heapq hmac html inspect io itertools json keyword
locale math numbers operator pathlib pickle pprint queue random re secrets statistics string struct textwrap threading
time timeit tokenize traceback types typing unicodedata unittest urllib.parse uuid warnings weakref xml.etree.ElementTree
zlib zoneinfo asyncio concurrent.futures logging tempfile bz2 lzma sqlite3
"""


def test_the_standard_library_works() -> None:
    present = [name for name in PURE.split() if name not in ("bz2", "lzma", "sqlite3") or _importable(name)]
    assert said(f"import importlib; return [importlib.import_module(n).__name__ for n in {present}] and 'all'") == "all"
    body = """
        import concurrent.futures, dataclasses, datetime, random, time, typing
        @dataclasses.dataclass
        class P:
            x: typing.List[int]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert list(pool.map(abs, range(-2, 3))) == [2, 1, 0, 1, 2]
        assert datetime.datetime.strptime('2024-02-29', '%Y-%m-%d').isoformat() == '2024-02-29T00:00:00'
        assert 0 <= random.random() < 1 and typing.get_type_hints(P) == {'x': typing.List[int]}
        time.sleep(0.001); time.localtime()
        return 'all'
    """
    assert said(body) == "all"


def _importable(name: str) -> bool:
    return subprocess.run([sys.executable, "-I", "-c", f"import {name}"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(99,)).start()\n    except RuntimeError: pass",
        "while True:\n    print('x' * 100000)",
        "import sys, os\nwhile True:\n    os.write(1, b'x' * 100000); os.write(2, b'x' * 100000)",
        "import signal\nfor s in range(1, 64):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
        "import sys\nsys.setswitchinterval(1e9)\n10 ** 10 ** 9",
    ],
)
def test_nothing_is_left_after_the_deadline(code: str) -> None:
    before, descriptors = children(os.getpid()), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert run(code, timeout_s=1).outcome in ("timeout", "error")
    assert children(os.getpid()) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


@pytest.mark.slow
def test_both_processes_die_with_the_one_that_started_them() -> None:
    script = """
from pipeline.rewards.verifiers.code import check_code
check_code("while True: pass", "assert add", timeout_s=600, memory_mb=512)
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT) as parent:
        wait_for(lambda: len(children(parent.pid)) == 2)
        started = children(parent.pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_for(lambda: not any(map(is_alive, started)))


# A seccomp filter that answers one call with ENOSYS and allows the rest stands in for a kernel without it.
WITHOUT = """
import ctypes, struct, sys
number, argument = int(sys.argv[1]), int(sys.argv[2])
rules = [(0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 16), (0x15, 0, 1, argument), (6, 0, 0, 0x50000 | 38),
         (6, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
class Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))
libc = ctypes.CDLL(None, use_errno=True)
zero = ctypes.c_ulong(0)
assert libc.prctl(38, ctypes.c_ulong(1), zero, zero, zero) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(rules), code)), 0, 0) == 0
from pipeline.rewards.verifiers.code import check_code
for _ in range(2):
    print(check_code("def add(a, b): return 3", "assert add(1, 2) == 3", timeout_s=20, memory_mb=512))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86_64")
@pytest.mark.parametrize(
    ("number", "argument", "reason"),
    [(444, 0, "no Landlock"), (157, 22, "seccomp filter"), (157, 38, "prctl option 38"), (157, 1, "prctl option 1")],
)
def test_without_a_part_of_the_sandbox_nothing_is_run(number: int, argument: int, reason: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(number), str(argument)], cwd=ROOT, capture_output=True, text=True
    )
    assert result.stdout.count("'error'>, answer='no sandbox: ") == 2, result
    assert reason in result.stdout
    assert result.stderr.count("is not run") == 1  # a word to people, once a process


@pytest.mark.parametrize(("version", "word"), [(-1, "no Landlock"), (0, "no Landlock"), (2, "version 2 of Landlock")])
def test_a_landlock_that_lets_files_be_truncated_is_refused(version: int, word: str) -> None:
    class Kernel:
        def syscall(self, *_: object) -> int:
            return version

    kernel: Any = Kernel()
    with pytest.raises(OSError, match=rf"{word}.*sandbox: rlimits"):
        confinement._landlock(kernel, [])


def test_without_landlock_files_can_be_read_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    code = f"""
        import os
        def ways():
            found = [open({str(file)!r}).read()]
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_APPEND, os.O_CREAT):
                try:
                    os.open({str(file)!r}, flags)
                except PermissionError:
                    found.append("refused")
            return found
    """
    tests = "assert ways() == ['kept', *['refused'] * 5]"
    assert run(code, tests, landlock=False) == Grade(Outcome.correct, "") and file.read_text() == "kept"


def test_the_tests_are_confined_as_well() -> None:
    result = run(
        ADD,
        "import socket\ntry:\n    socket.socket()\nexcept PermissionError:\n    assert add(1, 2) == 3\nelse:\n    assert 0",
    )
    assert result.outcome == "correct"


def verdict_of(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """A classic BPF interpreter: what the filter says of a call."""
    arch = confinement.AUDIT_ARCH[machine] if arch is None else arch
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *(0,) * (6 - len(arguments)))
    program = list(struct.iter_unpack("=HBBI", confinement.program(machine)))
    at = value = 0
    while True:
        code, true, false, k = program[at]
        at += 1
        match code:
            case 0x20:
                value = struct.unpack_from("<I", data, k)[0]
            case 0x54:
                value &= k
            case 0x15:
                at += true if value == k else false
            case 0x06:
                return k
            case _:
                raise AssertionError(code)


@pytest.mark.parametrize("machine", confinement.NR)
def test_the_filter_allows_what_it_lists_and_nothing_else(machine: str) -> None:
    allow, refuse = 0x7FFF0000, 0x50000 | 13
    listed, argued = set(confinement.NR[machine].values()), confinement.ARGUED[machine]
    for number in set(range(1000)) - set(argued.values()):
        assert verdict_of(machine, number) == (allow if number in listed else refuse), number
        assert verdict_of(machine, number | 0x40000000) == refuse
    assert verdict_of(machine, 0, arch=0x40000003) == 0x80000000  # a call of 32-bit x86 has other numbers
    thread = 0x3D0F00
    assert verdict_of(machine, argued["clone"], thread) == allow
    for flags in (0, 17, 0x100, 0x4111, thread | 0x10000000, thread | 0x40000000):
        assert verdict_of(machine, argued["clone"], flags) == refuse, hex(flags)
    assert verdict_of(machine, argued["clone3"]) == 0x50000 | 38
    for name, place in (("openat", 2), ("open", 1)):
        for flags in (0o1, 0o2, 0o100, 0o1000, 0o2000, 0o20200000, 0o2001000) if name in argued else ():
            assert verdict_of(machine, argued[name], *(0,) * place, 0o2000000) == allow, "close-on-exec changes nothing"
            assert verdict_of(machine, argued[name], *(0,) * place, flags) == refuse, oct(flags)


@pytest.mark.parametrize(
    ("machine", "header", "prefix"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "__NR_"),
        ("aarch64", "/usr/include/asm-generic/unistd.h", "__NR3?_?(?:264_)?"),
    ],
)
def test_the_numbers_are_those_of_the_kernel(machine: str, header: str, prefix: str) -> None:
    if not Path(header).exists():
        pytest.skip("no kernel headers here")
    by_name = {
        name.replace("fstatat", "newfstatat") if name == "fstatat" else name: int(number)
        for name, number in re.findall(rf"#define {prefix}(\w+)\s+(\d+)\b", Path(header).read_text(encoding="utf-8"))
    }
    ours = {**confinement.NR[machine], **confinement.ARGUED[machine]}
    assert {name: by_name.get(name) for name in ours} == ours
