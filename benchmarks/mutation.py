"""Whether tests fail when a guard is removed: `python -m benchmarks.mutation [--small] [--module M] [--sample N]`. A
seeded sample of mutants of each deciding module, each run against the module's own tests in a copy of the tree.
The last line is JSON: mutants, killed, survived, timed out. Needs Linux. No library has an operator that removes a
guard's body."""

import ast
import contextlib
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.mutation_runner import PACKAGES, Runner, Trial
from benchmarks.parts import options

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
        case ast.Return(value=ast.Constant(value=value)) if not value:  # None is as false as "" or 0
            pass
        case ast.Return(value=ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[])):
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


ROOT = Path(__file__).parent.parent
TREE = (*PACKAGES, "docs", "pyproject.toml")


def _named(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/{'' if '/' in name else 'test_'}{name}.py" for name in names)


TESTS: dict[str, tuple[str, ...]] = {
    "evals/gate.py": _named("evals", "gate", "roles", "judged_gate"),
    "evals/statistics.py": _named("evals", "statistics", "comparison"),
    "pipeline/selection/choose.py": _named("pipeline/selection", "choose", "winners"),
    "pipeline/selection/unpaired.py": _named("pipeline/selection", "scorers", "thumbs", "winners"),
    "pipeline/rewards/composite.py": _named("pipeline/rewards", "composite"),
    "pipeline/rollout/policy.py": _named("pipeline/rollout", "propose", "phases"),
    "pipeline/rollout/fold.py": _named("pipeline/rollout", "guards", "watched", "phases", "propose", "decision", "log"),
    "pipeline/rollout/decision.py": _named("pipeline/rollout", "decision", "phases"),
    "pipeline/rollout/propose.py": _named("pipeline/rollout", "propose", "phases", "decision", "controller"),
    "pipeline/rollout/rules.py": _named("pipeline/rollout", "harm", "comparability", "advance", "servers", "phases"),
    "pipeline/rollout/probe.py": _named("pipeline/rollout", "probe"),
    "pipeline/rollout/controller.py": _named(
        "pipeline/rollout", "controller", "drive", "phases", "guards", "watched", "servers", "propose", "decision"
    ),
    "pipeline/rollout/reconcile.py": _named("pipeline/rollout", "guards", "phases", "servers", "watched", "decision"),
    "pipeline/rollout/record.py": _named(
        "pipeline/rollout", "guards", "phases", "drive", "watched", "decision", "propose"
    ),
    "pipeline/training/checkpoints/checkpointer.py": _named(
        "pipeline/training/checkpoints", "checkpointer", "retention", "mirror", "mirror_removal", "claims"
    ),
    "pipeline/training/checkpoints/claims.py": _named("pipeline/training/checkpoints", "claims"),
    "pipeline/training/checkpoints/manifest.py": _named(
        "pipeline/training/checkpoints", "checkpointer", "retention", "mirror"
    ),
    "pipeline/training/checkpoints/mirror.py": _named("pipeline/training/checkpoints", "mirror", "mirror_removal"),
    "pipeline/traces/gates.py": _named("pipeline/traces", "gates", "scope")
    + _named("pipeline/traces/pii", "recogniser"),
    "pipeline/training/sentinel.py": _named("pipeline/training", "sentinel", "brakes"),
}
"""Each module that decides, with the files of its tests, its own first."""
PATIENCE, AT_LEAST_S = 4.0, 20.0
"""A mutant may take so many times as long as the tests of the module as it is, and no less than this."""


class Judged(NamedTuple):
    module: str
    mutant: Mutant
    trial: Trial


def main() -> None:
    parser = options(__doc__, "two mutants of one module")
    parser.add_argument("--module", action="append", choices=sorted(TESTS), metavar="M", help="one of them alone")
    parser.add_argument("--sample", type=int, default=25, help="mutants of each module; 0: all of them")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.small:
        chosen.module, chosen.sample = ["pipeline/training/checkpoints/claims.py"], 2
    figures: dict[str, dict[str, int]] = {}
    with copied(ROOT) as tree:
        for module in chosen.module or TESTS:
            drawn = sample((tree / module).read_text(encoding="utf-8"), chosen.sample, f"{chosen.seed} {module}")
            counts = Counter[str]()
            for judged in trials(tree, module, TESTS[module], drawn):
                counts[judged.trial.status] += 1
                print(describe(judged), flush=True)
            figures[module] = summary(counts)
            print(f"{module}: {figures[module]}", flush=True)
    total = {key: sum(each[key] for each in figures.values()) for key in summary(Counter())}
    print(json.dumps({**total, "seed": chosen.seed, "sample": chosen.sample, "modules": figures}))


def sample(source: str, size: int, seed: str) -> list[Mutant]:
    """`size` of a module's mutants in the order of its lines, the same for the same seed; all where it has no more."""
    every = mutants(source)
    if not size or size >= len(every):
        return every
    return [every[at] for at in sorted(random.Random(seed).sample(range(len(every)), size))]


def summary(counts: Counter[str]) -> dict[str, int]:
    """A mutant that never ends is killed too, and counted by itself as well."""
    killed = counts["failed"] + counts["timed out"]
    return {"mutants": counts.total(), "killed": killed, "survived": counts["passed"], "timed_out": counts["timed out"]}


def describe(judged: Judged) -> str:
    word = {"passed": "SURVIVED", "failed": "killed", "timed out": "timed out"}[judged.trial.status]
    by = f"  by {judged.trial.by.rpartition('/')[2]}" if judged.trial.by else ""
    return f"{word:<9} {judged.module}:{judged.mutant.line}  {judged.mutant}{by}  ({judged.trial.took_s:.1f} s)"


@contextlib.contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A copy of the tree, with the reference data beside it."""
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in TREE:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.is_file():
                shutil.copy2(source, tree / name)
        if (shared := root.parent / "shared").is_dir():
            (tree.parent / "shared").symlink_to(shared.resolve())
        yield tree


def trials(tree: Path, module: str, tests: Sequence[str], drawn: Sequence[Mutant]) -> Iterator[Judged]:
    """Each mutant with the word of the module's tests. Raises RuntimeError where these fail without any mutant."""
    file = tree / module
    source = file.read_text(encoding="utf-8")
    with Runner(tree, module, tests) as runner:
        undisturbed = runner.run()
        if undisturbed.status != "passed":
            raise RuntimeError(f"The tests of {module} {undisturbed.status} as it is, by {undisturbed.by}. Mend them.")
        for bytecode in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            bytecode.unlink()
        try:
            for mutant in drawn:
                file.write_text(applied(source, mutant), encoding="utf-8")
                within_s = max(AT_LEAST_S, PATIENCE * undisturbed.took_s)
                yield Judged(module, mutant, runner.run(within_s))
        finally:
            file.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    main()
