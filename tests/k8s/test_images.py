"""The images, as far as they can be judged without building them."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from k8s.pod import USER
from tests.variants import one_and_variants

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "k8s" / "images"
DOCKERFILES = sorted(IMAGES.glob("*.Dockerfile"))
DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
# What is imported under another name than the one that it is installed by.
DISTRIBUTIONS = {
    "re2": "google-re2", "yaml": "pyyaml", "math_verify": "math-verify",
    "pydantic_core": "pydantic",
}  # fmt: skip
# Of jsonschema and s3fs, which bring them.
BROUGHT = {"referencing", "jsonschema_specifications", "botocore", "sympy", "tokenizers"}
images = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)


def parsed(text: str, **build_args: str):
    parser = pytest.importorskip("dockerfile_parse", reason="dockerfile-parse is not installed").DockerfileParser
    return parser(fileobj=BytesIO(text.encode()), build_args=build_args)


def instructions(dockerfile: Path, kind: str) -> list[str]:
    return [
        step["value"]
        for step in parsed(dockerfile.read_text(encoding="utf-8")).structure
        if step["instruction"] == kind
    ]


@images
def test_it_starts_from_images_that_cannot_change(dockerfile: Path) -> None:
    given = {"BASE": f"nvcr.io/nvidia/nemo-rl@sha256:{'0' * 64}"} if dockerfile.stem == "nemo-rl" else {}
    parser = parsed(dockerfile.read_text(encoding="utf-8"), **given)
    assert parser.parent_images
    assert all(DIGEST.fullmatch(image) and ":latest" not in image for image in parser.parent_images)
    assert not instructions(dockerfile, "ADD"), "ADD fetches from anywhere and unpacks what it likes; COPY does neither"


@images
def test_its_user_is_the_one_that_owns_the_data_root(dockerfile: Path) -> None:
    """As a number: the kubelet can't tell that a name is not root's, and files on the volume know numbers alone."""
    steps = parsed(dockerfile.read_text(encoding="utf-8")).structure
    last = max(i for i, step in enumerate(steps) if step["instruction"] == "USER")
    assert steps[last]["value"] == f"{USER}:{USER}"
    assert "RUN" not in {step["instruction"] for step in steps[last:]}


def copied(dockerfile: Path) -> Iterator[str]:
    for value in instructions(dockerfile, "COPY"):
        *sources, _ = shlex.split(value)
        if not sources[0].startswith("--from="):
            yield from sources


def ignored(path: str) -> bool:
    """By the Docker SDK's own reading of .dockerignore."""
    build = pytest.importorskip("docker.utils.build", reason="the Docker SDK is not installed")
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return build.PatternMatcher([line for line in lines if line and not line.startswith("#")]).matches(path)


@images
def test_what_it_copies_is_there_and_reaches_the_builder(dockerfile: Path) -> None:
    sources = list(copied(dockerfile))
    assert sources
    for source in sources:
        assert (ROOT / source).exists() and not ignored(source), source


@pytest.mark.parametrize("path", [
    ".env", "jobs/.env", "pipeline/.env.local", ".git/config", ".venv/bin/python", ".venv-vllm/bin/python", "data/x",
    ".dagster/storage/runs.db", "dagster.yaml", "tests/conftest.py", "k8s/manifests/bases/rbac/roles.yaml",
    "pipeline/__pycache__/storage.cpython-311.pyc", "notes.txt",
])  # fmt: skip
def test_what_no_image_may_hold_never_reaches_the_builder(path: str) -> None:
    assert ignored(path)


def requirements(image: str) -> set[str]:
    lines = (IMAGES / f"{image}.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


NEVER_CALLED = {"pipeline.training.nemo": {"trl", "datasets"}}
"""Imported inside functions that this entry does not call: NeMo RL trains without a method's TRL trainer. Nor does it
copy checkpoints to a bucket, so it does without botocore."""
NEMO_RLS = {"ray", "nemo_rl"}
"""Imported by modules that run in NeMo RL's own Python."""


@pytest.mark.parametrize(("image", "entry"), [
    ("trainer", "pipeline.training"), ("nemo-rl", "pipeline.training.nemo"),
])  # fmt: skip
def test_a_trainer_has_what_it_imports_and_no_dagster(image: str, entry: str) -> None:
    """Over every module that the entry can reach, by import-linter's own graph."""
    grimp = pytest.importorskip("grimp", reason="import-linter is not installed")
    graph = grimp.build_graph("pipeline", include_external_packages=True, cache_dir=None)
    reached: set[str] = set()
    todo = [module for module in graph.modules if module.startswith(entry)]
    while todo:
        module = todo.pop()
        if module in reached:
            continue
        reached.add(module)
        if module.split(".")[0] == "pipeline":
            todo += [*graph.find_modules_directly_imported_by(module), module.rpartition(".")[0] or "pipeline"]
    external = {module for module in reached if module.split(".")[0] != "pipeline"}
    external -= {*sys.stdlib_module_names, *NEMO_RLS}
    assert external
    assert "botocore" not in external or entry in NEVER_CALLED or "s3fs" in requirements(image), "what brings it"
    external -= NEVER_CALLED.get(entry, set())
    assert {DISTRIBUTIONS.get(name, name) for name in external - BROUGHT} <= requirements(image)
    assert "dagster" not in requirements(image) | external


def test_the_web_server_of_dagster_s_chart_checks_origins(tmp_path: Path) -> None:
    """The chart starts `dagster-webserver`, which is `jobs.webserver` in the image."""
    (replaced,) = [run for run in instructions(IMAGES / "dagster.Dockerfile", "RUN") if "dagster-webserver" in run]
    subprocess.run(["sh", "-c", replaced.replace("/opt/venv/bin", str(tmp_path))], check=True)
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python").chmod(0o755)
    command = ["/bin/sh", str(tmp_path / "dagster-webserver"), "-h", "0.0.0.0", "-p", "80"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert done.stdout == "-m jobs.webserver -h 0.0.0.0 -p 80\n"


ROOTS = re.compile(r"(?<![\w/.])/(?=(?:app|build|opt)\b)")
"""Of the paths in a step."""
NOT_INSTALLED = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in getattr(each, "__module__", "")]
"""
"""Takes an editable install of this checkout out of sight."""
STARTS = {
    "trainer": ("python -m pipeline.training --help", "python -m evals answer --help"),
    "nemo-rl": ("python -m pipeline.training --help",),
    "dagster": (
        "python -c 'import jobs.definitions'",
        "python -m k8s.images.fetch_weights a b 2>&1 | grep -q ValueError",
        "python -m jobs.pt --help",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", one_and_variants(STARTS, "trainer"))
def test_what_is_copied_runs_by_itself(name: str, tmp_path: Path) -> None:
    for value in instructions(IMAGES / f"{name}.Dockerfile", "COPY"):
        *sources, target = shlex.split(value)
        into = Path(ROOTS.sub(f"{tmp_path}/", target))
        for source in sources if not sources[0].startswith("--from=") else ():
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, dirs_exist_ok=True, ignore=_ignored_names)
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, into)
    (tmp_path / "sitecustomize.py").write_text(NOT_INSTALLED)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    env = {"PATH": path, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{tmp_path / 'app'}:{tmp_path}"}
    for command in STARTS[name]:
        at = tmp_path / "app"
        done = subprocess.run(["sh", "-ec", command], cwd=at, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])


def _ignored_names(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if ignored(str((Path(folder) / name).relative_to(ROOT)))]
