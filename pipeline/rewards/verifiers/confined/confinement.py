"""How a process gives up everything but computing, reading the standard library and its own pipes, before it runs a
line that it was given: limits, Landlock, and a seccomp filter (seccomp(2)) under which all system calls but the listed
ones fail with EACCES: no sockets, no new process, no exec, no signals, no ptrace, no file opened but for reading.
`confine` raises unless every part is in force."""

import ctypes
import os
import resource
import signal
import struct
import sys

NR = {
    "x86_64": {
        **{"read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8},
        **{"mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14},
        **{"rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23, "sched_yield": 24},
        **{"mremap": 25, "madvise": 28, "dup": 32, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38},
        **{"getpid": 39, "exit": 60, "uname": 63, "getcwd": 79, "gettimeofday": 96, "getrusage": 98},
        **{"times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "sigaltstack": 131},
        **{"gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204, "getdents64": 217},
        **{"set_tid_address": 218, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229},
        **{"clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "faccessat": 269},
        **{"pselect6": 270, "ppoll": 271, "set_robust_list": 273, "getrandom": 318, "membarrier": 324, "statx": 332},
        **{"rseq": 334, "faccessat2": 439},
    },
    "aarch64": {
        **{"getcwd": 17, "dup": 23, "faccessat": 48, "close": 57, "getdents64": 61, "lseek": 62},
        **{"read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pselect6": 72, "ppoll": 73},
        **{"newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94, "set_tid_address": 96, "futex": 98},
        **{"set_robust_list": 99, "nanosleep": 101, "getitimer": 102, "setitimer": 103, "clock_gettime": 113},
        **{"clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124},
        **{"restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135},
        **{"rt_sigreturn": 139, "times": 153, "uname": 160, "getrusage": 165, "gettimeofday": 169},
        **{"getpid": 172, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "brk": 214},
        **{"munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278},
        **{"membarrier": 283, "statx": 291, "rseq": 293, "faccessat2": 439},
    },
}
"""Calls allowed with any arguments, by machine."""
ARGUED = {
    "x86_64": {"clone": 56, "clone3": 435, "openat": 257, "open": 2},
    "aarch64": {"clone": 220, "clone3": 435, "openat": 56},
}
"""Calls whose arguments decide."""
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LOAD, _AND, _IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EACCES, _ENOSYS = 13, 38
_THREAD = 0x10100  # CLONE_VM | CLONE_THREAD: a thread, not a process
_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag
_CHANGES = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000  # O_WRONLY, RDWR, CREAT, TRUNC, APPEND, of O_TMPFILE
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every machine
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38


def confine(parent: int, cpu_s: int, memory_mb: int, landlock: bool) -> None:
    """Confine this process, a child of `parent`, for good. Raises OSError with what could not be done.

    Without `landlock` it can read what its user can; it still can't write, open a socket or start a process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError("the parent has ended")
    # Lists before limits: what the interpreter has mapped says where its libraries are.
    folders = readable()
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_mb << 20),
    ):
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))
    _prctl(libc, _PR_SET_DUMPABLE, 0)
    _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)
    if landlock:
        _landlock(libc, folders)
    _seccomp(libc)
    _prove(landlock)


def readable() -> list[str]:
    """Folders of the standard library, of the shared libraries in use, and of the time zones."""
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123 - pathlib costs a confined process 10 ms
        mapped = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps}
    libraries = {os.path.dirname(path) for path in mapped if path.startswith("/") and ".so" in os.path.basename(path)}  # noqa: PTH119, PTH120
    return sorted(folder for folder in {*sys.path, *libraries, "/usr/share/zoneinfo"} if os.path.isdir(folder))  # noqa: PTH112


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    none = ctypes.c_ulong(0)
    if libc.prctl(option, ctypes.c_ulong(value), none, none, none) != 0:
        raise OSError(ctypes.get_errno(), f"prctl option {option} was refused")


def _landlock(libc: ctypes.CDLL, folders: list[str]) -> None:
    """Reading beneath `folders` is all that is left of the file system (landlock(7))."""
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 3:  # the earlier versions let a process truncate files
        raise OSError(
            ctypes.get_errno(),
            f"the kernel has {'no Landlock' if version < 1 else f'version {version} of Landlock'}: use Linux 6.2 or "
            "later with `landlock` among its security modules, under a container profile that allows it, or accept "
            "that completions can read files: rewards.verifier.sandbox: rlimits",
        )
    # Every right that this version knows is taken away: files, then TCP, then signals and abstract sockets.
    files = (1 << (15 + (version >= 5))) - 1
    rights = struct.pack("=QQQ", files, 3, 3)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = libc.syscall(_LANDLOCK_CREATE, rights, ctypes.c_size_t(len(rights)), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset was refused")
    for folder in folders:
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", _READ_FILE | _READ_DIR, descriptor)
        if libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), f"landlock_add_rule was refused for {folder}")
        os.close(descriptor)
    if libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self was refused")
    os.close(ruleset)


def program(machine: str) -> bytes:
    """The filter for `machine`, as an array of sock_filter. Raises KeyError for a machine that is not listed."""
    special, arch = ARGUED[machine], AUDIT_ARCH[machine]
    refuse, allow = _do(_RETURN, _ERRNO | _EACCES), _do(_RETURN, _ALLOW)
    rules = {
        # glibc falls back to clone(2), whose flags a filter can see, where clone3(2) does not exist
        "clone3": [_do(_RETURN, _ERRNO | _ENOSYS)],
        "clone": _masked(0, _THREAD | _NAMESPACES, _THREAD),
        "openat": _masked(2, _CHANGES, 0),
        "open": _masked(1, _CHANGES, 0),
    }
    code = [_do(_LOAD, 4), _if(arch, 1, 0), _do(_RETURN, _KILL), _do(_LOAD, 0)]
    for number in NR[machine].values():
        code += [_if(number, 0, 1), allow]
    for name, number in special.items():
        code += [_if(number, 0, len(rules[name])), *rules[name]]
    return b"".join([*code, refuse])


def _if(value: int, true: int, false: int) -> bytes:
    return struct.pack("=HBBI", _IF_EQUAL, true, false, value)


def _do(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value)


def _masked(argument: int, mask: int, value: int) -> list[bytes]:
    """Allows a call whose argument, masked, has this value."""
    load = _do(_LOAD, 16 + 8 * argument)
    return [load, _do(_AND, mask), _if(value, 0, 1), _do(_RETURN, _ALLOW), _do(_RETURN, _ERRNO | _EACCES)]


def _seccomp(libc: ctypes.CDLL) -> None:
    """Filter this thread and all that it starts, for good. No new privileges must be set."""

    class SockFprog(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    filters = program(os.uname().machine)
    pr_set_seccomp, mode_filter = 22, 2
    if libc.prctl(pr_set_seccomp, mode_filter, ctypes.byref(SockFprog(len(filters) // 8, filters)), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused the seccomp filter")


def _prove(landlock: bool) -> None:
    """A kernel, or an emulation of one, that accepted the rules and does not apply them is no sandbox."""
    for name, forbidden in (
        *((("Landlock", lambda: os.open("/", os.O_RDONLY)),) if landlock else ()),
        ("seccomp", lambda: os.kill(os.getpid(), 0)),
    ):
        try:
            forbidden()
        except PermissionError:
            continue
        raise OSError(f"{name} was accepted and is not in force")
