"""How a process gives up everything but computing, reading the standard library and its own pipes, before it runs a
line that it was given: limits, Landlock, seccomp. `confine` raises unless every part is in force."""

import ctypes
import os
import resource
import signal
import struct
import sys

from pipeline.rewards.verifiers.confined import seccomp

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
    seccomp.install(libc)
    _prove(landlock)


def readable() -> list[str]:
    """Folders of the standard library, of the shared libraries in use, and of the time zones."""
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - pathlib costs a confined process 10 ms
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
