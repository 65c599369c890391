"""The rules of the house that a script can check, but for the order of imports: for that make lint asks
import-linter."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PACKAGES = ("pipeline", "assets", "jobs", "evals", "k8s", "benchmarks", "tests")
BANNED = {"utils", "helpers", "common", "base", "manager", "core", "misc"}
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_a_class_name_has_one_meaning() -> None:
    named: defaultdict[str, list[str]] = defaultdict(list)
    for path in (f for f in FILES if not {"tests", "benchmarks"} & set(f.relative_to(ROOT).parts)):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                named[node.name.lstrip("_")].append(path.relative_to(ROOT).as_posix())
    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_no_file_passes_the_hard_limit() -> None:
    long = {str(f.relative_to(ROOT)): n for f in FILES if (n := len(f.read_text().splitlines())) > 400}
    assert not long


def test_every_file_has_a_name_of_its_own() -> None:
    assert not [f for f in FILES if f.stem in BANNED]


def test_every_module_says_what_it_owns() -> None:
    modules = [f for f in FILES if "tests" not in f.parts]
    assert not [str(f) for f in modules if not f.read_text().lstrip().startswith(('"""', 'r"""'))]


def test_names_of_tests_are_short() -> None:
    tests = [f for f in FILES if f.name.startswith("test_")]
    named = [(f.name, node.name) for f in tests for node in ast.walk(tree(f))
             if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]  # fmt: skip
    assert [each for each in named if len(each[1]) > 60] == []


DRIVES_TESTS = {"gpu.py", "gpu_matrix.py", "nights.py", "nights_calendar.py", "rollout_machine.py"}
"""Benchmarks that run the tests' own trainings, rollouts and calendar on other hardware, or for longer."""


def test_no_benchmark_imports_tests() -> None:
    lines = {f.name: f.read_text().splitlines() for f in FILES if (ROOT / "benchmarks") in f.parents}
    assert {name for name, of in lines.items() if any("from tests" in line for line in of)} == DRIVES_TESTS


def test_nothing_is_unpickled_and_no_remote_code_is_trusted() -> None:
    dangerous = ("torch.load(", "pickle.load", "joblib", "yaml.load(", "trust_remote_code=True")
    ours = [f for f in FILES if f.name != "test_house.py"]
    assert not [(f.name, word) for f in ours for word in dangerous if word in f.read_text()]


def _leaves_the_encoding_to_the_locale(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = {ast.unparse(each).partition("='")[0] for each in call.keywords}
    if "encoding" in given:
        return False
    if name in ("open", "fdopen"):
        modes = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
        return not (call.args or given) or any(re.fullmatch("[rwax][t+]*", mode) for mode in modes)
    return "text=True" in given or (name, len(call.args)) in (("read_text", 0), ("write_text", 1))


def test_every_text_has_its_encoding_named() -> None:
    """Ruff's PLW1514 sees it where it knows the type of what is opened."""
    calls = [(f.name, node) for f in FILES if "tests" not in f.relative_to(ROOT).parts
             for node in ast.walk(tree(f)) if isinstance(node, ast.Call)]  # fmt: skip
    assert [(name, ast.unparse(node)) for name, node in calls if _leaves_the_encoding_to_the_locale(node)] == []


BINDS_EVERYWHERE = {"k8s/render.py": "Ray's dashboard in its pod, behind the network policies"}


def test_servers_bind_to_this_machine_alone() -> None:
    ours = [f for f in FILES if f.relative_to(ROOT).parts[0] not in ("tests", "benchmarks")]
    everywhere = {str(f.relative_to(ROOT)) for f in ours if "0.0.0.0" in f.read_text()}
    assert everywhere == BINDS_EVERYWHERE.keys()


LIGHT = (
    ("import jobs.status", "torch transformers mlflow dagster matplotlib pandas scipy duckdb pyiceberg jinja2"),
    ("import pipeline.traces.retention", "pyiceberg"),
    ("import evals.evaluate, evals.report", "matplotlib math_verify pandas scipy sympy torch"),
    ("import jobs.definitions", "torch transformers trl peft vllm mlflow kubernetes lightkube matplotlib pandas"),
    # transformers without torch takes half a second
    (
        "from assets.preflight import check; from assets.resources import Deployment; "
        "list(check(Deployment(recipe_path='jobs/recipes/embedded.yaml', overrides=['data_root=/tmp/no-data-root'])))",
        "torch mlflow trl pandas matplotlib s3fs",
    ),
    ("import pipeline.serving.__main__, pipeline.training.worker", "sklearn"),
)
"""What is done often or before anything is paid for, and libraries that it leaves out: what one process leaves out
after all that stands above is left out by each alone."""
TEMPLATE = (
    "from pathlib import Path; from pipeline.demo.desk import MODEL_DIR; "
    "from pipeline.models.rendering import folder_template, left_out; "
    "assert not left_out(folder_template(Path(MODEL_DIR)))",
    "torch pyarrow",
)


@pytest.mark.parametrize("steps", [LIGHT, (TEMPLATE,)])
def test_what_is_done_often_leaves_heavy_libraries_out(steps: tuple[tuple[str, str], ...]) -> None:
    checks = (f"{code}\nprint([n for n in {heavy.split()} if n in sys.modules])" for code, heavy in steps)
    program = ["import sys", *checks]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == ["[]"] * len(steps)


MAY_READ_THE_ENVIRONMENT = {
    "assets/environment.py": "the one place",
    "pipeline/__init__.py": "a home, and no proxy to this machine, for every library and child",
    "pipeline/training/__main__.py": "torchrun's RANK",
    "pipeline/training/worker.py": "torchrun's RANK, and accelerate's settings for this process",
    "pipeline/training/journal.py": "torchrun's RANK",
    "pipeline/training/scorers.py": "a trainer has no Dagster: the judge's address, torchrun's RANK",
    "pipeline/training/distribution.py": "threads and network of the ranks that it starts",
    "pipeline/core/processes.py": "hands its own on to what it starts",
    "pipeline/core/redaction.py": "hides the values of its secrets, in whatever process",
    "pipeline/registry/runs.py": "silences MLflow before it is imported",
    "pipeline/traces/lake/file_io.py": "Arrow's client of S3 is told of checksums in no other way",
    "pipeline/rewards/verifiers/pool.py": "takes all but a list of names from a worker that runs others' code",
    "pipeline/rewards/reward_model/__main__.py": "settles threads and kernels before torch is imported",
    "evals/__main__.py": "a pod that evaluates has no Dagster",
    "jobs/pt.py": "puts what .env says into it, as the dagster commands do",
    "jobs/ui.py": "hands its own on to the servers",
}


def test_the_environment_is_read_in_one_place() -> None:
    reading = {
        str(file.relative_to(ROOT))
        for folder in ("pipeline", "assets", "jobs", "evals", "k8s")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert reading == MAY_READ_THE_ENVIRONMENT.keys()
