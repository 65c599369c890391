# ruff: noqa: E501 - a program in one string reads better than a wrapped one
from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rewards.verifiers.code import check_code, printable, python_block
from pipeline.rewards.verifiers.outcome import Grade, Outcome

ADD = "def add(a, b):\n    return a + b\n"
TESTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0\n"


def check(code: str, tests: str, *, timeout_s: float = 20.0, memory_mb: int = 512) -> Grade:
    return check_code(f"Here it is:\n```python\n{code}\n```\n", tests, timeout_s=timeout_s, memory_mb=memory_mb)


def test_a_completion_that_passes_its_tests_is_correct() -> None:
    assert check(ADD, TESTS) == Grade(Outcome.correct, "")


def test_completion_that_fails_one_test_is_wrong_and_says_which() -> None:
    grade = check("def add(a, b):\n    return 3", TESTS)
    assert grade == Grade(Outcome.wrong, "AssertionError | assert add(-1, 1) == 0")


@pytest.mark.parametrize(
    ("code", "answer"),
    [
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


def test_code_without_a_fence_counts_where_the_whole_text_parses() -> None:
    assert check_code(ADD, TESTS, timeout_s=20, memory_mb=512).outcome is Outcome.correct


@pytest.mark.slow
def test_code_that_does_not_end_is_a_timeout() -> None:
    assert check("def add(a, b):\n    while True: pass", TESTS, timeout_s=1).outcome is Outcome.timeout
    assert check("import time; time.sleep(1000)", TESTS, timeout_s=1).outcome is Outcome.timeout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("def add(a, b):\n    return len('x' * 10**10)", "MemoryError"),
        ("kept = []\ndef add(a, b):\n    while True: kept.append(bytearray(1 << 20))", "MemoryError"),
        ("def add(a, b):\n    return [0] * 10_000_000", "too large"),
        ("import numpy\n" + ADD, "ModuleNotFoundError"),
        ("def add(a, b):\n    open('/tmp/note', 'w').write('x')\n    return a + b", "PermissionError"),
        ("def add(a, b):\n    x = []\n    x.append(x)\n    return x", "nested too deeply"),
        ("async def add(a, b):\n    return a + b", "coroutine"),
    ],
)
def test_sandbox_refusal_is_an_error_and_no_wrong_answer(code: str, word: str) -> None:
    grade = check(code, TESTS)
    assert grade.outcome is Outcome.error
    assert word in grade.answer


VALUES = """
import collections, datetime, decimal, fractions, typing
Point = collections.namedtuple("Point", "x y")
class Pair(typing.NamedTuple):
    left: int
    right: str
VALUES = [
    None, True, 0, -1, 2**64, -(2**4000), 1.5, float("inf"), 1 + 2j, "", "\\ud800\\0é", b"\\xff", bytearray(b"a"), [], [1, [2]],
    (), (1, (2, 3)), {1, 2}, frozenset({1}), {}, {"a": [1], 2: None}, range(1, 9, 2), fractions.Fraction(1, 3),
    decimal.Decimal("1.10"), datetime.date(2024, 2, 29), datetime.timedelta(1, 2, 3),
    datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc), collections.OrderedDict(a=1), collections.Counter("aab"),
    collections.deque([1, 2], 5), collections.defaultdict(int, a=1), Point(1, 2), Pair(1, "a"), int, float,
]
def value(at):
    return VALUES[at]
def kind(at):
    return type(VALUES[at]).__name__
def same(thing, at):
    return type(thing).__name__ == kind(at) and thing == VALUES[at]
"""


def test_values_cross_with_their_type_in_both_directions() -> None:
    tests = VALUES.split("def value")[0] + (
        "for at, mine in enumerate(VALUES):\n"
        "    theirs = value(at)\n"
        "    assert type(theirs).__name__ == type(mine).__name__, mine\n"
        "    assert theirs == mine, mine\n"
        "    assert same(mine, at), mine\n"
        "assert value(-4).x == 1 and value(-3).right == 'a' and value(-5)['new'] == 0"
    )
    assert check(VALUES, tests) == Grade(Outcome.correct, "")


HONEST = [
    ("def f(x):\n    x.sort()", "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]"),
    ("def f(x):\n    x['a'] = 1\n    return x", "x = {}\nassert f(x) is x and x == {'a': 1}"),
    ("def f(x):\n    return list(x)", "x = [1]\ny = f(x)\nassert y == x and y is not x"),
    ("def f(g, x):\n    return g(g(x))", "assert f(lambda x: x + 1, 3) == 5\nassert f(abs, -1) == 1"),
    ("def f(g):\n    try:\n        return g()\n    except ValueError as e:\n        return str(e)",
     "def g():\n    raise ValueError('no')\nassert f(g) == 'no'"),
    ("def f(n):\n    for i in range(n):\n        yield i", "assert list(f(3)) == [0, 1, 2]\nassert next(f(1)) == 0"),
    ("def f(n):\n    i = 0\n    while True:\n        yield i\n        i += n",
     "import itertools\nassert list(itertools.islice(f(2), 3)) == [0, 2, 4]"),
    ("def f(xs):\n    return sum(xs)", "assert f(x for x in [1, 2]) == 3 and f(range(4)) == 6 and f(map(int, '12')) == 3"),
    ("class E(ValueError):\n    def __init__(self, code):\n        super().__init__('bad')\n        self.code = code\n"
     "def f():\n    raise E(7)",
     "try:\n    f()\n    assert False\nexcept E as e:\n    assert e.code == 7 and str(e) == 'bad'\n"
     "try:\n    f()\nexcept ValueError:\n    pass"),
    ("import json\ndef f(x):\n    return json.loads(x)", "import json\ntry:\n    f('{')\n    assert 0\nexcept json.JSONDecodeError:\n    pass"),
    ("class Node:\n    def __init__(self, v):\n        self.v, self.left, self.right = v, None, None\n"
     "def depth(n):\n    return 1 + max(depth(n.left), depth(n.right)) if n else 0",
     "r = Node(1)\nr.left = Node(2)\nr.left.right = Node(3)\nassert depth(r) == 3 and r.left.v == 2 and r.right is None"),
    ("class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
     "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n    def __str__(self): return 'S'",
     "s = Stack()\ns.push(1)\ns.push(2)\nassert len(s) == 2 and s.pop() == 2 and str(s) == 'S' and s.items == [1]\n"
     "assert isinstance(s, Stack) and not isinstance(3, Stack)\ntry:\n    s.pop(); s.pop()\nexcept IndexError:\n    pass"),
    ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int\n    def __add__(self, o): return P(self.x + o.x, self.y + o.y)",
     "assert P(1, 2) + P(3, 4) == P(4, 6)\nassert P(1, 2) != P(2, 1)\nassert repr(P(1, 2)) == 'P(x=1, y=2)'"),
    ("def sum(a, b):\n    return a * b", "assert sum(10, 15) == 150"),
    ("import math\ndef f(x):\n    return math.sqrt(x)", "assert math.isclose(f(2), 1.41421356, rel_tol=1e-6)"),
    ("def hello():\n    print('hi')", "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    hello()\nassert out.getvalue() == 'hi\\n'"),
    ("answer = 42", "assert answer == 42"),
    ("def f(x):\n    return x\nif __name__ == '__main__':\n    print(input())", "def check(candidate):\n    assert candidate(1) == 1\ncheck(f)"),
    ("def f(x):\n    return 1", "def test():\n    assert f(0) == 1\nif __name__ == 'tests':\n    test()\nimport sys\nsys.exit(0)"),
    ("import asyncio\ndef f(x):\n    return x", "assert f('\\ud800') == '\\ud800'"),
    ("import contextlib\n@contextlib.contextmanager\ndef f():\n    yield 5", "with f() as x:\n    assert x == 5"),
    ("def f(*a, k=1, **n):\n    return a, k, n", "assert f(1, 2, k=3, z=[4]) == ((1, 2), 3, {'z': [4]})"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "tests"), HONEST)
def test_honest_code_of_many_shapes_is_correct(code: str, tests: str) -> None:
    assert check(code, tests) == Grade(Outcome.correct, "")


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(x):\n    return (i for i in [1, 2])", "assert f(1) == [1, 2]"),
        ("class A: pass\ndef f(x):\n    return A()", "assert f(1) == 5"),
        ("def f(x):\n    return x.clear()", "x = [1]\nf(x)\nassert x == [1]"),
        ("def f(x):\n    return x", "x = [1]\nassert f(x) is not x"),
        ("def f(x):\n    return 3.0", "assert isinstance(f(1), int)"),
    ],
)
def test_plainly_wrong_values_are_wrong_and_no_error(code: str, tests: str) -> None:
    assert check(code, tests).outcome is Outcome.wrong


@pytest.mark.parametrize(
    ("code", "tests", "word"),
    [
        ("class A:\n    def f(self): return 1", "class B(A): pass\nassert B().f() == 1", "mro_entries"),
        ("def f(x):\n    return x.v", "class A:\n    v = 1\nassert f(A()) == 1", "a A, which can't be sent"),
        (
            "class A:\n    def __init__(self): self.xs = []",
            "a = A()\na.xs.append(1)\nassert a.xs == [1]",
            "container inside",
        ),
        ("class M(int): pass\ndef f(x):\n    return M(x)", "assert f(1) == 1", "`==` between"),
        (
            "def f(x):\n    return x",
            "import inspect\nassert len(inspect.signature(f).parameters) == 1",
            "look into code",
        ),
    ],
)
def test_what_two_processes_cannot_do_is_an_abstention(code: str, tests: str, word: str) -> None:
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
    result = python_block(text)
    assert (result and result.body) == block


@given(st.text(alphabet="`~ \npython\t\0a{.}", max_size=200))
def test_extraction_takes_any_text(text: str) -> None:
    block = python_block(text)
    assert block is None or text[block.start :].startswith(block.body)
    assert block is None or re.search("`{3}|~{3}", text)


def test_extraction_is_linear_in_hostile_text() -> None:
    for line in ("~" * 300_000 + "`", "`" * 300_000, "```\n" * 75_000, " " * 300_000, "~~~ " * 75_000 + "`"):
        python_block(line)


@given(st.text())
def test_answers_are_short_and_printable(text: str) -> None:
    result = printable(text * 3)
    assert len(result) <= 200
    assert result.isprintable()
