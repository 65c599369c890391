"""Mutants of a module: its source with one small change that a test should notice.

The operators: a comparison at its boundary and turned round, `and` for `or`, one operand of them left out, `not`
left out, a condition that never or always holds (which removes a guard's body), a filter left out, a number plus one,
a truth value turned round, `+` for `-`, `min` for `max`, `any` for `all`, None returned, a statement left out (raise,
continue, a call, an assertion, an assignment to an attribute or an item). A change is of the text, at the place of one
node of the syntax tree, so the rest of the file stays as it is. Refuses what decides nothing: annotations, imports,
docstrings, other texts, the words of an error, and assertions for the type checker that something is not None.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

BOUNDARY: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
}  # fmt: skip
OPPOSITE: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.GtE(), ast.LtE: ast.Gt(), ast.Gt: ast.LtE(), ast.GtE: ast.Lt(),
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(), ast.NotIn: ast.In(),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(), ast.FloorDiv: ast.Mult(),
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
BODIES = ("body", "orelse", "finalbody")


class Mutant(NamedTuple):
    """One change. `start`, `end`: offsets in the source in bytes; `line`: where the change begins, from 1."""

    operator: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        one_line = (" ".join(text.split()) for text in (self.before, self.after))
        before, after = (text if len(text) <= 90 else f"{text[:87]}..." for text in one_line)
        return f"{self.operator}: {before}  ->  {after}"


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines, each of another text."""
    text = source.encode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    unique: dict[tuple[int, int, str], Mutant] = {}
    for node, operator, after in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        mutant = Mutant(operator, node.lineno, start, end, text[start:end].decode(), after)
        unique.setdefault((start, end, after), mutant)
    return sorted(unique.values(), key=lambda mutant: (mutant.start, mutant.end, mutant.after))


def applied(source: str, mutant: Mutant) -> str:
    """The source with the change in it."""
    text = source.encode()
    return (text[: mutant.start] + mutant.after.encode() + text[mutant.end :]).decode()


Change = tuple[ast.expr | ast.stmt, str, str]
"""A node, the operator's name, and the text in the node's place."""


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.Raise():
            yield node, "no raise", "pass"
            return
        case ast.Assert(test=ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)])):
            return
        case ast.Assert():
            yield node, "no assertion", "pass"
            yield from _changes(node.test)
            return
        case ast.AnnAssign():
            if node.value is not None:
                yield from _changes(node.value)
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from _changes(default)
            for statement in node.body:
                yield from _changes(statement)
            return
        case ast.keyword(arg="strict"):  # of zip: that lengths are equal is the caller's business
            return
        case ast.stmt():
            yield from _of_statement(node)
        case ast.expr():
            yield from _of_expression(node)
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from _changes(child)


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break() | ast.AugAssign() | ast.Delete():
            yield node, "no statement", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "no statement", "pass"
        case ast.Return(value=None):
            yield node, "no return", "pass"
        case ast.Return(value=ast.Constant(value=None)):
            pass
        case ast.Return():
            yield node, "return", "return None"
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            pass
        case ast.If():
            yield node.test, "never", "False"
            yield node.test, "always", "True"
        case ast.While() if not isinstance(node.test, ast.Constant):
            yield node.test, "never", "False"
        case _:
            pass


def _of_expression(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for at, sign in enumerate(node.ops):
                for operator, signs in (("boundary", BOUNDARY), ("comparison", OPPOSITE)):
                    if (other := signs.get(type(sign))) is not None:
                        ops = [*node.ops[:at], other, *node.ops[at + 1 :]]
                        yield node, operator, _text(ast.Compare(node.left, ops, node.comparators))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, "and/or", _text(ast.BoolOp(other, node.values))
            for at in range(len(node.values)):
                rest = [*node.values[:at], *node.values[at + 1 :]]
                yield node, "operand", _text(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node, "no sign", _text(node.operand)
        case ast.BinOp() if (sign := ARITHMETIC.get(type(node.op))) is not None:
            yield node, "arithmetic", _text(ast.BinOp(node.left, sign, node.right))
        case ast.IfExp():
            yield node, "always", _text(node.body)
            yield node, "never", _text(node.orelse)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            for test in (test for generator in node.generators for test in generator.ifs):
                yield test, "no filter", "True"
        case ast.Constant(value=bool()):
            yield node, "constant", str(not node.value)
        case ast.Constant(value=int() | float()):
            yield node, "constant", f"({node.value + 1!r})"
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield node.func, "name", NAMES[name]
        case _:
            pass


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"
