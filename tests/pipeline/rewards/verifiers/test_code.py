# ruff: noqa: E501 - a program in one string reads better than a wrapped one
import pytest

from pipeline.rewards.verifiers.code import check_code, python_block
from pipeline.rewards.verifiers.outcome import Grade, Outcome

ADD = "def add(a, b):\n    return a + b\n"
TESTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0\n"


def check(code: str, tests: str, *, timeout_s: float = 20.0, memory_mb: int = 512) -> Grade:
    return check_code(f"Here it is:\n```python\n{code}\n```\n", tests, timeout_s=timeout_s, memory_mb=memory_mb)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("def add(a, b):\n    return 3", "AssertionError | assert add(-1, 1) == 0"),
        ("def add(a, b):\n    raise ValueError('no')", "ValueError: no | assert add(1, 2) == 3"),
        ("def plus(a, b):\n    return a + b", "NameError: name 'add' is not defined | assert add(1, 2) == 3"),
        ("def add(a):\n    return a", "TypeError: add() takes 1 positional argument but 2 were given | assert add(1, 2) == 3"),
        ("1 / 0\n" + ADD, "ZeroDivisionError: division by zero"),
        ("def add(a, b:", "SyntaxError: '(' was never closed (<completion>, line 1)"),
        ("def add(a, b):\n    return add(a, b)", "RecursionError: maximum recursion depth exceeded | assert add(1, 2) == 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(code: str, answer: str) -> None:
    assert check(code, TESTS) == Grade(Outcome.wrong, answer)


@pytest.mark.parametrize(
    ("tests", "answer"),
    [
        ("assert add(1, 2) ==", "the tests do not compile: SyntaxError: invalid syntax"),
        ("", "0 characters of tests"),
        ("\0", "the tests do not compile"),
        ("x = 1\nassert x == 1", "the tests pass without the completion"),
        ("def check(candidate):\n    assert candidate(1, 2) == 3", "the tests pass without the completion"),
        ("def test_add():\n    assert add(1, 2) == 3", "the tests pass without the completion"),
        ("import numpy\nassert add(1, 2) == 3", "the tests fail without the completion: ModuleNotFoundError"),
        ("assert 1 == 2\nassert add(1, 2) == 3", "the tests fail without the completion: AssertionError"),
        ("raise SystemExit(0)\nassert add(1, 2) == 3", "the tests pass without the completion"),
    ],
)
def test_tests_that_say_nothing_of_the_completion_are_no_gold(tests: str, answer: str) -> None:
    grade = check(ADD, tests)
    assert grade.outcome is Outcome.unparsable_gold
    assert grade.answer.startswith(answer)


@pytest.mark.parametrize("text", ["", "  \n", "I don't know, sorry.", "```python\n```", "\0", "print('a'"])
def test_a_text_without_code_is_no_answer(text: str) -> None:
    assert check_code(text, TESTS, timeout_s=20, memory_mb=512).outcome is Outcome.no_answer


@pytest.mark.slow
def test_code_that_does_not_end_is_a_timeout() -> None:
    assert check("def add(a, b):\n    while True: pass", TESTS, timeout_s=1).outcome is Outcome.timeout
    assert check("import time; time.sleep(1000)", TESTS, timeout_s=1).outcome is Outcome.timeout


VALUES = """
VALUES = [
    None, True, 0, -1, 2**64, -(2**40000), 1.5, float("inf"), 1 + 2j, "", "\\ud800\\0é", b"\\xff", [], [1, [2]],
    (), (1, (2, 3)), {1, 2}, frozenset({1}), {}, {"a": [1], 2: None, (1, 2): {3}},
]
def value(at):
    return VALUES[at]
def same(thing, at):
    return type(thing) is type(VALUES[at]) and thing == VALUES[at]
"""


def test_values_cross_with_their_type_in_both_directions() -> None:
    tests = VALUES.split("def value")[0].replace("VALUES", "mine") + (
        "for at, each in enumerate(mine):\n"
        "    assert type(value(at)) is type(each) and value(at) == each, each\n"
        "    assert same(each, at), each\n"
    )
    assert check(VALUES, tests) == Grade(Outcome.correct, "")


UNITTEST = """import unittest
class Adds(unittest.TestCase):
    def test_one(self):
        self.assertEqual(f(1), 2)
if __name__ == '__main__':
    unittest.main()
"""

HONEST = [
    (ADD, TESTS),
    ("def f(x):\n    x.sort()", "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]"),
    ("def f(x):\n    x['a'] = 1\n    return x", "x = {}\nassert f(x) is x and x == {'a': 1}"),
    ("def f(x):\n    return list(x)", "x = [1]\ny = f(x)\nassert y == x and y is not x"),
    ("import json\ndef f(x):\n    return json.loads(x)", "import json\ntry:\n    f('{')\n    assert 0\nexcept json.JSONDecodeError:\n    pass"),
    ("def sum(a, b):\n    return a * b", "assert sum(10, 15) == 150"),
    ("import math\ndef f(x):\n    return math.sqrt(x)", "assert math.isclose(f(2), 1.41421356, rel_tol=1e-6)"),
    ("def hello():\n    print('hi')", "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    hello()\nassert out.getvalue() == 'hi\\n'"),
    ("answer = 42", "assert answer == 42"),
    ("def f(x):\n    return x\nif __name__ == '__main__':\n    print(input())", "def check(candidate):\n    assert candidate(1) == 1\ncheck(f)"),
    ("def f(x):\n    return 1", "def test():\n    assert f(0) == 1\nif __name__ == '__main__':\n    test()\nimport sys\nsys.exit(0)"),
    ("import asyncio\ndef f(x):\n    return x", "assert f('\\ud800') == '\\ud800'"),
    ("def f(*a, k=1, **n):\n    return a, k, n", "assert f(1, 2, k=3, z=[4]) == ((1, 2), 3, {'z': [4]})"),
    ("def f(x):\n    if x < 0:\n        raise ValueError('bad')\n    raise KeyError(x)",
     "try:\n    f(-1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'bad'\ntry:\n    f(1)\nexcept KeyError as e:\n    assert e.args == (1,)"),
    ("def f(x):\n    return x + 1", UNITTEST),
    ("def f(x):\n    return x + 1", UNITTEST.replace("unittest.main()", "unittest.main(exit=False)")),
    ("def f(x):\n    return x + 1", "def check(f):\n    assert f(1) == 2\ncheck(f)"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "tests"), HONEST)
def test_honest_code_of_many_shapes_is_correct(code: str, tests: str) -> None:
    assert check(code, tests) == Grade(Outcome.correct, "")


ENDS = [
    ("", "SystemExit"),
    ("", "SystemExit(0)"),
    ("import unittest", "unittest.SkipTest('no')"),
    ("", "GeneratorExit"),
]


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(x):\n    return x.clear()", "x = [1]\nf(x)\nassert x == [1]"),
        ("def f(x):\n    return x", "x = [1]\nassert f(x) is not x"),
        ("def f(x):\n    return 3.0", "assert isinstance(f(1), int)"),
        ("def f(x):\n    return x", UNITTEST),
        *((f"{lines}\ndef f(x):\n    raise {error}", tests) for lines, error in ENDS for tests in (UNITTEST, "f(1)")),
    ],
)
def test_plainly_wrong_values_are_wrong_and_no_error(code: str, tests: str) -> None:
    assert check(code, tests).outcome is Outcome.wrong


@pytest.mark.parametrize(
    ("code", "tests", "word"),
    [
        ("def add(a, b):\n    return len('x' * 10**10)", TESTS, "MemoryError"),
        ("kept = []\ndef add(a, b):\n    while True: kept.append(bytearray(1 << 20))", TESTS, "MemoryError"),
        ("def add(a, b):\n    return [0] * 10_000_000", TESTS, "too large"),
        ("import numpy\n" + ADD, TESTS, "ModuleNotFoundError"),
        ("def add(a, b):\n    open('/tmp/note', 'w').write('x')\n    return a + b", TESTS, "PermissionError"),
        ("def add(a, b):\n    x = []\n    x.append(x)\n    return x", TESTS, "nested too deeply"),
        ("async def add(a, b):\n    return a + b", TESTS, "coroutine"),
        (
            "class A:\n    def f(self): return 1",
            "class B(A): pass\nassert B().f() == 1",
            "a class of the completion: A",
        ),
        ("class A:\n    def __init__(self): self.xs = []", "assert A().xs == []", "a A, which can't be sent"),
        ("class E(ValueError): pass\ndef f():\n    raise E(7)", "try:\n    f()\nexcept E:\n    pass", "completion: E"),
        ("def f(x):\n    return x.v", "class A:\n    v = 1\nassert f(A()) == 1", "pass a A, which can't be sent"),
        ("def f(g):\n    return g(1)", "assert f(lambda x: x) == 1", "pass a function, which can't be sent"),
        ("def f(n):\n    yield n", "assert list(f(1)) == [1]", "a generator, which can't be sent"),
        ("class M(int): pass\ndef f(x):\n    return M(x)", "assert f(1) == 1", "a M, which can't be sent"),
    ],
)
def test_what_a_sandbox_refuses_is_an_abstention(code: str, tests: str, word: str) -> None:
    grade = check(code, tests)
    assert grade.outcome is Outcome.error
    assert word in grade.answer


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("no fence", None),
        ("```python\na\n```\nthen\n```py\nb\n```", "b\n"),
        ("```python\na\n```\nOutput:\n```\n5\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```bash\nls\n```", None),
        ("```\na\n```\n```sh\nls\n```", "a\n"),
        ("~~~~ {.python}\na\n~~~\n~~~~", "a\n~~~\n"),
        ("````python\n```\na\n````", "```\na\n"),
        ("```Python title=x\na", "a"),
        ("```python\n", ""),
        ("text ```python\na\n```", ""),
    ],
)
def test_the_last_python_block_is_the_answer(text: str, block: str | None) -> None:
    assert python_block(text) == block


def test_extraction_is_linear_in_hostile_text() -> None:
    for line in ("~" * 300_000 + "`", "`" * 300_000, "```\n" * 75_000, " " * 300_000, "~~~ " * 75_000 + "`"):
        python_block(line)


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
    "exit in the call": "import sys\ndef add(a, b):\n    sys.exit(0)",
    "hard exit": "import os\nos._exit(0)",
    "exit at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b):\n    raise SystemExit(0)",
    "stop": "def add(a, b):\n    raise StopIteration",
    "marker": "print('PASSED'); print('correct')\ndef add(a, b):\n    print('OK', flush=True)",
    "equal to everything": EQUAL_TO_EVERYTHING + "def add(a, b):\n    return Yes()",
    "a class by that name": EQUAL_TO_EVERYTHING + "class add(Yes):\n    def __init__(self, a, b): pass",
    "str subclass": "class Yes(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\nadd = lambda a, b: Yes()",
    "builtins": "import builtins\nbuiltins.AssertionError = None\nbuiltins.len = lambda x: 3\nadd = lambda a, b: None",
    "trace": "import sys\ndef skip(frame, event, arg):\n    frame.f_trace_lines = False\n    return skip\n"
    "sys.settrace(skip)\nadd = lambda a, b: None",
    "frames": "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n        f.f_globals.update(add=lambda *_: 3)\n"
    "        f.f_locals.update(outcome='correct')\n        f = f.f_back",
    "garbage": "import gc\nfor thing in gc.get_objects():\n    if isinstance(thing, dict) and 'outcome' in thing:\n"
    "        thing['outcome'] = 'correct'\nadd = lambda a, b: None",
    "channel": "import os\nimport json\n"
    "for fd in range(3, 64):\n    try: os.write(fd, json.dumps(['correct', '']).encode() + b'\\n')\n    except OSError: pass\n"
    "add = lambda a, b: None",
    "closed channel": "import os\nos.closerange(0, 64)\nimport time\nadd = lambda a, b: None",
    "thread": "import threading, time\ndef go():\n    while True: time.sleep(0.01)\n"
    "threading.Thread(target=go).start()\nadd = lambda a, b: None",
    "crash": "import ctypes\nctypes.string_at(0)",
    "the module": "import sys\nadd = sys.modules[__name__]",
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
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert 1.5 in half(3)"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert {half(3): 1} == {3: 1}"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "assert half(3).startswith('1.5')"),
        (EQUAL_TO_EVERYTHING + "half = lambda x: Yes()", "try:\n    assert half(3) == 1.5\nexcept BaseException:\n    pass"),
        ("import collections\nhalf = lambda x: collections.namedtuple('Yes', 'startswith')(lambda s: True)", "assert half(3).startswith('1.5')"),
        # an exception that would end a loop of the tests before its first assertion
        ("def half(x):\n    raise StopIteration", "for got, x in zip(map(half, [1, 2]), [1, 2]):\n    assert got == x / 2"),
        ("def half(x):\n    raise StopIteration", "assert all(map(half, [1, 2]))"),
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
