"""The system calls that a confined process may make, as a seccomp filter (seccomp(2)). All others fail with EACCES: no
sockets, no new process, no exec, no signals, no ptrace, no file opened but for reading."""

import ctypes
import os
import struct

NR = {
    "x86_64": {
        **{"read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8},
        **{"mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14},
        **{"rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23, "sched_yield": 24},
        **{"mremap": 25, "madvise": 28, "dup": 32, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38},
        **{"getpid": 39, "exit": 60, "uname": 63, "getcwd": 79, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98},
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
        **{"rt_sigreturn": 139, "times": 153, "uname": 160, "getrlimit": 163, "getrusage": 165, "gettimeofday": 169},
        **{"getpid": 172, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "brk": 214},
        **{"munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278},
        **{"membarrier": 283, "statx": 291, "rseq": 293, "faccessat2": 439},
    },
}
"""Calls allowed with any arguments, by machine."""

ARGUED = {
    "x86_64": {"clone": 56, "fcntl": 72, "prlimit64": 302, "clone3": 435, "openat": 257, "open": 2},
    "aarch64": {"clone": 220, "fcntl": 25, "prlimit64": 261, "clone3": 435, "openat": 56},
}
"""Calls whose arguments decide."""

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LOAD, _AND, _IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EACCES, _ENOSYS = 13, 38
_THREAD = 0x10100  # CLONE_VM | CLONE_THREAD: a thread, not a process
_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag
_CHANGES = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000  # O_WRONLY, RDWR, CREAT, TRUNC, APPEND, of O_TMPFILE
_FCNTL = (0, 1, 2, 3, 1030)  # dup, get and set close-on-exec, get flags; F_SETOWN could send signals to others


def _if(code: int, k: int, true: int, false: int) -> bytes:
    return struct.pack("=HBBI", code, true, false, k)


def _do(code: int, k: int) -> bytes:
    return _if(code, k, 0, 0)


def _argument(position: int, *, high: bool = False) -> bytes:
    return _do(_LOAD, 16 + 8 * position + 4 * high)


def program(machine: str) -> bytes:
    """The filter for `machine`, as an array of sock_filter. Raises KeyError for a machine that is not listed."""
    refuse, allow = _do(_RETURN, _ERRNO | _EACCES), _do(_RETURN, _ALLOW)
    special = ARGUED[machine]
    rules = {
        # glibc falls back to clone(2), whose flags a filter can see, where clone3(2) does not exist
        special["clone3"]: [_do(_RETURN, _ERRNO | _ENOSYS)],
        special["clone"]: [
            _argument(0),
            _do(_AND, _THREAD | _NAMESPACES),
            _if(_IF_EQUAL, _THREAD, 0, 1),
            allow,
            refuse,
        ],
        special["fcntl"]: [
            _argument(1),
            *(part for command in _FCNTL for part in (_if(_IF_EQUAL, command, 0, 1), allow)),
            refuse,
        ],
        special["prlimit64"]: [  # reading its own limits only
            *(
                part
                for load in (_argument(0), _argument(2), _argument(2, high=True))
                for part in (load, _if(_IF_EQUAL, 0, 1, 0), refuse)
            ),
            allow,
        ],
    }
    for name, flags in (("openat", 2), ("open", 1)):
        if name in special:
            rules[special[name]] = [
                _argument(flags),
                _do(_AND, _CHANGES),
                _if(_IF_EQUAL, 0, 0, 1),
                allow,
                refuse,
            ]
    code = [_do(_LOAD, 4), _if(_IF_EQUAL, AUDIT_ARCH[machine], 1, 0), _do(_RETURN, _KILL), _do(_LOAD, 0)]
    for number in NR[machine].values():
        code += [_if(_IF_EQUAL, number, 0, 1), allow]
    for number, rule in rules.items():
        code += [_if(_IF_EQUAL, number, 0, len(rule)), *rule]
    return b"".join([*code, refuse])


def install(libc: ctypes.CDLL) -> None:
    """Filter this thread and all that it starts, for good. No new privileges must be set. Raises OSError."""

    class SockFprog(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    filters = program(os.uname().machine)
    pr_set_seccomp, mode_filter = 22, 2
    if libc.prctl(pr_set_seccomp, mode_filter, ctypes.byref(SockFprog(len(filters) // 8, filters)), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused the seccomp filter")
