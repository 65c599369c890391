"""That the pages name files, modules and folders that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = "pipeline|evals|k8s|assets|jobs|tests|benchmarks|docs"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), ROOT / "CONTRIBUTING.md", ROOT / "k8s" / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_path_of_a_page_exists(page: Path) -> None:
    paths = re.findall(rf"`((?:{PACKAGES})/[\w./-]*)`", page.read_text())
    assert [path for path in paths if not (ROOT / path).exists() and not (page.parent / path).exists()] == []


def test_the_tree_in_the_readme_is_the_tree() -> None:
    tree = (ROOT / "README.md").read_text().partition("## The tree")[2].partition("```\n")[2].partition("```")[0]
    parent, named = "", set[str]()
    for line in tree.splitlines():
        name = line.split()[0].rstrip(",")
        parent = "" if not line.startswith(" ") else parent
        named.add(path := f"{parent}{name}")
        parent = parent or (path if name.endswith("/") else "")
    assert len(named) > 20
    assert [path for path in sorted(named) if not list(ROOT.glob(path))] == []
