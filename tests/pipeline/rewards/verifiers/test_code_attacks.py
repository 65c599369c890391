# ruff: noqa: E501 - a program in one string reads better than a wrapped one
from __future__ import annotations

import pytest

from pipeline.rewards.verifiers.code import check_code
from pipeline.rewards.verifiers.outcome import Grade, Outcome

TESTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0\n"


def check(code: str, tests: str) -> Grade:
    return check_code(f"```python\n{code}\n```", tests, timeout_s=20, memory_mb=512)


# Each of these passes in a harness that runs completion and tests in one interpreter.
EQUAL_TO_EVERYTHING = """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __contains__ = startswith = __lt__
    def __sub__(self, other): return 0.0
    __rsub__ = __add__ = __radd__ = __mod__ = __sub__
    def __abs__(self): return 0.0
    def __hash__(self): return 3
    def __bool__(self): return True
"""

IN_ONE_INTERPRETER = {
    "exit": "import sys\nsys.exit(0)",
    "exit in the call": "import sys\ndef add(a, b):\n    sys.exit(0)",
    "hard exit": "import os\nos._exit(0)",
    "hard exit in the call": "import os\ndef add(a, b):\n    os._exit(0)",
    "exit at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b):\n    raise SystemExit(0)",
    "keyboard": "def add(a, b):\n    raise KeyboardInterrupt",
    "generator exit": "def add(a, b):\n    raise GeneratorExit",
    "stop": "def add(a, b):\n    raise StopIteration",
    "marker": "print('PASSED'); print('correct')\ndef add(a, b):\n    print('OK', flush=True)",
    "equal to everything": EQUAL_TO_EVERYTHING + "def add(a, b):\n    return Yes()",
    "equal class": EQUAL_TO_EVERYTHING + "add = lambda a, b: Yes",
    "a class by that name": EQUAL_TO_EVERYTHING + "class add(Yes):\n    def __init__(self, a, b): pass",
    "int subclass": "class Yes(int):\n    def __eq__(self, other): return True\ndef add(a, b):\n    return Yes(7)",
    "str subclass": "class Yes(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\nadd = lambda a, b: Yes()",
    "inside a list": EQUAL_TO_EVERYTHING + "def add(a, b):\n    return [Yes()]",
    "builtins": "import builtins\nbuiltins.AssertionError = None\nbuiltins.len = lambda x: 3\nadd = lambda a, b: None",
    "assertion error": "class AssertionError(Exception): pass\nadd = lambda a, b: None",
    "trace": "import sys\ndef skip(frame, event, arg):\n    frame.f_trace_lines = False\n    return skip\n"
    "sys.settrace(skip)\nadd = lambda a, b: None",
    "frames": "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n        f.f_globals.update(add=lambda *_: 3)\n"
    "        f.f_locals.update(outcome='correct')\n        f = f.f_back",
    "garbage": "import gc\nfor thing in gc.get_objects():\n    if isinstance(thing, dict) and 'outcome' in thing:\n"
    "        thing['outcome'] = 'correct'\nadd = lambda a, b: None",
    "main": "import __main__\n__main__.correct = True\n__main__.examiner = None\nadd = lambda a, b: None",
    "channel": "import os\nimport json\n"
    "for fd in range(3, 64):\n    try: os.write(fd, json.dumps(['correct', '']).encode() + b'\\n')\n    except OSError: pass\n"
    "add = lambda a, b: None",
    "descriptors": "import os\nfor fd in range(0, 64):\n    try: os.write(fd, b'correct' * 100)\n    except OSError: pass\n"
    "add = lambda a, b: None",
    "closed channel": "import os\nos.closerange(0, 64)\nimport time\nadd = lambda a, b: None",
    "thread": "import threading, time\ndef go():\n    while True: time.sleep(0.01)\n"
    "threading.Thread(target=go).start()\nadd = lambda a, b: None",
    "signal": "import signal, os\ntry: signal.raise_signal(9)\nexcept OSError: pass\nadd = lambda a, b: None",
    "crash": "import ctypes\nctypes.string_at(0)",
    "crash in the call": "def add(a, b):\n    import ctypes\n    ctypes.string_at(0)",
    "liar": "def add(a, b):\n    return {'outcome': 'correct'}",
    "the module": "import sys\nadd = sys.modules[__name__]",
    "any": "from unittest.mock import ANY\nadd = lambda a, b: ANY",
    "float nan": "add = lambda a, b: float('nan')",
    "proxy exception": "class Yes(Exception):\n    def __eq__(self, other): return True\nadd = lambda a, b: Yes()",
}  # fmt: skip


@pytest.mark.parametrize("attack", IN_ONE_INTERPRETER)
def test_no_attack_makes_a_completion_correct(attack: str) -> None:
    grade = check(IN_ONE_INTERPRETER[attack], TESTS)
    assert grade.outcome in (Outcome.wrong, Outcome.error), grade
    assert grade.answer


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert abs(half(3) - 1.5) < 1e-6"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert abs(1.5 - half(3)) < 1e-6"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert 1.5 in half(3)"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert half(3) in (1, 1.5)"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert {half(3): 1} == {3: 1}"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert half(3).startswith('1.5')"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert half(3).__eq__(1.5)"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert not half(3) != 1.5"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "try:\n    assert half(3) == 1.5\nexcept BaseException:\n    pass"),
        ("import collections\nhalf = lambda x: collections.namedtuple('Yes', 'startswith')(lambda s: True)", "assert half(3).startswith('1.5')"),
        # an exception that would end a loop of the tests before its first assertion
        ("def half(x):\n    raise StopIteration", "for got, x in zip(map(half, [1, 2]), [1, 2]):\n    assert got == x / 2"),
        ("def half(x):\n    raise StopIteration", "assert all(map(half, [1, 2]))"),
        ("class Stop(StopIteration): pass\ndef half(x):\n    raise Stop", "assert all(map(half, [1, 2]))"),
        # built-ins of the tests
        ("def all(x):\n    return True\nhalf = lambda x: 9", "assert all(half(x) == x / 2 for x in (1, 2))"),
        ("abs = lambda x: 0\nhalf = lambda x: 9", "assert abs(half(3) - 1.5) < 1e-6"),
        ("class math:\n    isclose = lambda *a: True\nimport math as m\nhalf = lambda x: 9", "import math\nassert math.isclose(half(3), 1.5)"),
        ("import math\nmath.isclose = lambda *a: True\nhalf = lambda x: 9", "assert math.isclose(half(3), 1.5)"),
        # a callable of the tests is no way into their process
        ("def half(f):\n    return f.__globals__", "assert half(lambda x: x) == 1.5"),
        ("def half(f):\n    import os\n    f.__call__ = 1\n    return f", "assert half(lambda x: x) == 1.5"),
    ],
)  # fmt: skip
def test_completion_does_not_see_what_it_is_compared_with(code: str, tests: str) -> None:
    assert check(code, tests).outcome in (Outcome.wrong, Outcome.error)
