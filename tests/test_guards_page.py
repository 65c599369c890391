"""That the guards in CONTRIBUTING.md name modules and tests that exist, and that make test runs."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Guards\n")[2].partition("\n## ")[0]


def test_each_guard_names_a_module_and_a_test_that_exist() -> None:
    rows = re.findall(r"^\| .+ \| `(\S+\.py)` \| `(\S+\.py)::(test_\w+)` \|$", PAGE, re.MULTILINE)
    assert 0 < len(rows) == len([line for line in PAGE.splitlines() if line.startswith("| ")]) - 1  # the head
    assert [module for module, _, _ in rows if not (ROOT / module).is_file()] == []
    defined = {file: _functions(file) for _, file, _ in rows}
    assert [(file, test) for _, file, test in rows if test not in defined[file]] == []
    assert [(file, test) for _, file, test in rows if "variant" in defined[file][test]] == []


def _functions(file: str) -> dict[str, set[str]]:
    """The functions of a file with the pytest marks that each carries as a whole."""
    if not (ROOT / file).is_file():
        return {}
    tree = ast.parse((ROOT / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {node.name: {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list} for node in functions}
