import re
import struct
from pathlib import Path

import pytest

from pipeline.rewards.verifiers.confined import seccomp


def verdict_of(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """A classic BPF interpreter: what the filter says of a call."""
    arch = seccomp.AUDIT_ARCH[machine] if arch is None else arch
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *(0,) * (6 - len(arguments)))
    program = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
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


@pytest.mark.parametrize("machine", seccomp.NR)
def test_the_filter_allows_what_it_lists_and_nothing_else(machine: str) -> None:
    allow, refuse = 0x7FFF0000, 0x50000 | 13
    listed, argued = set(seccomp.NR[machine].values()), seccomp.ARGUED[machine]
    for number in set(range(1000)) - set(argued.values()):
        assert verdict_of(machine, number) == (allow if number in listed else refuse), number
        assert verdict_of(machine, number | 0x40000000) == refuse
    assert verdict_of(machine, 0, arch=0x40000003) == 0x80000000  # a call of 32-bit x86 has other numbers
    thread = 0x3D0F00
    assert verdict_of(machine, argued["clone"], thread) == allow
    for flags in (0, 17, 0x100, 0x4111, thread | 0x10000000, thread | 0x40000000):
        assert verdict_of(machine, argued["clone"], flags) == refuse, hex(flags)
    assert verdict_of(machine, argued["clone3"]) == 0x50000 | 38
    assert [c for c in range(2000) if verdict_of(machine, argued["fcntl"], 5, c) == allow] == [0, 1, 2, 3, 1030]
    assert verdict_of(machine, argued["prlimit64"], 0, 7, 0, 1 << 40) == allow
    for name, place in (("openat", 2), ("open", 1)):
        for flags in (0o1, 0o2, 0o100, 0o1000, 0o2000, 0o20200000, 0o2001000) if name in argued else ():
            assert verdict_of(machine, argued[name], *(0,) * place, 0o2000000) == allow, "close-on-exec changes nothing"
            assert verdict_of(machine, argued[name], *(0,) * place, flags) == refuse, oct(flags)
    for arguments in ((1, 7, 0, 0), (0, 7, 1, 0), (0, 7, 1 << 40, 0)):
        assert verdict_of(machine, argued["prlimit64"], *arguments) == refuse


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
        for name, number in re.findall(rf"#define {prefix}(\w+)\s+(\d+)\b", Path(header).read_text())
    }
    ours = {**seccomp.NR[machine], **seccomp.ARGUED[machine]}
    assert {name: by_name.get(name) for name in ours} == ours
