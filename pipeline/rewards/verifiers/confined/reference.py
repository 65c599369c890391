"""What can be read off a reference's source: which names are the completion's, and which line has failed."""

from __future__ import annotations

import ast

TESTS = "<tests>"
"""File name of the tests in tracebacks."""


def shadowed(tree: ast.Module) -> set[str]:
    """The built-in that the tests are about: the only free name that they have. Else built-ins stay themselves, so that
    a completion's own `all` or `abs` has no say in the tests."""
    bound = {alias.asname or alias.name.split(".")[0] for node in ast.walk(tree)
             if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}  # fmt: skip
    free: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                free.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                bound.add(name)
            case _:
                pass
    return free - bound if len(free - bound) == 1 else set()


def imports(tree: ast.Module) -> set[str]:
    module_names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            module_names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module_names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return module_names


def describe(failure: BaseException, tests: str) -> str:
    """The failing line of the tests, and what was raised."""
    line, trace = 0, failure.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == TESTS else line
        trace = trace.tb_next
    source = tests.splitlines()[line - 1].strip() if line else ""
    try:
        text = str(failure)
    except BaseException:  # the boundary to objects of the completion among its arguments
        text = ""
    raised = f"{type(failure).__name__}: {text}".rstrip(": ")
    return f"{raised} | {source}" if source else raised
