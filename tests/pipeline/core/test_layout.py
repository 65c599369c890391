"""The data root's names: each of them is said in `pipeline.core.layout`, and nowhere else in the source."""

import ast
import re
from pathlib import Path

import pytest

from pipeline.core import layout

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SOURCES = [path for folder in ("pipeline", "assets", "evals", "jobs", "k8s") for path in (ROOT / folder).rglob("*.py")]
RECORDS = {
    name for value in vars(layout).values() if isinstance(value, str) for name in [value.rpartition("/")[2]]
    if name.endswith((".json", ".jsonl", ".parquet", ".lock", ".db"))
}  # fmt: skip
PLACES = re.compile(rf"(?:{'|'.join(sorted({*layout.OWN, layout.PRODUCTION, layout.SUITES}))})/")
ALLOWED = {
    # TRL's names of metrics, which only look like a place below `rewards/`.
    *("rewards/accuracies", "rewards/margins"),
    # File names that another package gives to something of its own, in folders of its own.
    *("manifest.json", "head.json"),
}


def texts(path: Path) -> list[str]:
    """Every string constant of a file that is no docstring, the constant parts of f-strings among them."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs]
    return [node.value for node in constants if isinstance(node.value, str)]


def literals(path: Path) -> list[str]:
    named = [text for text in texts(path) if " " not in text and (text in RECORDS or PLACES.match(text))]
    return sorted(set(named) - ALLOWED)


def test_no_name_of_the_data_root_is_said_twice() -> None:
    names_by_file = {path.relative_to(ROOT).as_posix(): literals(path) for path in SOURCES if path.name != "layout.py"}
    assert {path: names for path, names in names_by_file.items() if names} == {}
    assert len(RECORDS) > 12 and len(SOURCES) > 200, "the search looks at something"


def test_the_search_finds_a_literal(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text('"""iterations/x is fine here."""\nA = f"iterations/{id}/x"\nB = store.path("eval_report.json")\n')
    assert literals(path) == ["eval_report.json", "iterations/"]
