import sys


class PY_EXECUTABLES:
    SYSTEM = sys.executable
