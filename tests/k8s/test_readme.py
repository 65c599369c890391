"""k8s/README.md as a script: what needs no cluster is run as it is written, and versions agree everywhere."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from k8s.client import RESOURCES
from k8s.gang import example_gangs
from k8s.lint import lint_gang
from k8s.render import render
from pipeline.recipe import load

from .manifests import MANIFESTS, of_kind, overlay
from .policies import LAUNCHER, Policies, refusals
from .render.golden import CASES

ROOT = Path(__file__).parents[2]
README = (ROOT / "k8s" / "README.md").read_text()
VERSIONS = yaml.safe_load((MANIFESTS / "operators" / "versions.yaml").read_text())
OPERATORS = VERSIONS["operators"]
SECTION = README[README.index("## From a bare cluster") : README.index("## Who may do what")]
LINES = [line for block in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL) for line in block.splitlines()]
HERE = {"cp", "sed", "export", "pt", "kubectl"}
"""Programs that are run; of kubectl its kustomize."""
ELSEWHERE = re.compile(r"\b(docker|helm|kubectl(?! kustomize))\b")
DIGESTS = {"TRAINER": "sha256:" + "1" * 64, "DAGSTER": "sha256:" + "2" * 64, "NEMO_RL": "sha256:" + "3" * 64}
"""That a push would have answered."""


def runs_here(line: str) -> bool:
    return shlex.split(line)[0] in HERE and not ELSEWHERE.search(line)


class Done(NamedTuple):
    folder: Path
    output: str
    ran: list[str]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The commands that need no cluster, one after the other in a copy of what they change."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl to build the manifests with")
    folder = tmp_path_factory.mktemp("checkout")
    for part in ("k8s/manifests", "jobs/recipes"):
        shutil.copytree(ROOT / part, folder / part)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "pt").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m jobs.pt "$@"\n')
    (programs / "pt").chmod(0o755)
    ran = [line for line in LINES if runs_here(line)]
    environment = {**os.environ, **DIGESTS, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    script = "\n".join(["set -euo pipefail", *ran])
    run = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return Done(folder, run.stdout, ran)


@pytest.mark.slow
def test_what_needs_no_cluster_runs_as_written(done: Done) -> None:
    assert len(done.ran) >= 14
    assert sum(line.startswith("kubectl kustomize") for line in done.ran) == 2
    assert {"lint", "render", "estimate"} == {line.split()[2] for line in done.ran if line.startswith("pt k8s")}
    first, second = (line for line in done.output.splitlines() if line.startswith("errors: "))
    assert first.startswith("errors: 0, warnings: 0") and second.startswith("errors: 0, warnings: 0")


@pytest.mark.parametrize("name", ["eks_workshop", "gke_deepscaler", "spot_h200_dpo", "spot_h200_grpo"])
def test_the_page_pins_the_image_of_the_recipe_s_engine(name: str, tmp_path: Path) -> None:
    recipe = shutil.copy(ROOT / "jobs" / "recipes" / f"{name}.yaml", tmp_path / "mine.yaml")
    steps = [line for line in LINES if line.startswith("sed") and '"$RECIPE"' in line]
    environment = {**os.environ, **DIGESTS, "RECIPE": str(recipe), "REGISTRY": "registry.acme.example/pt"}
    subprocess.run(["bash", "-euc", "\n".join(steps)], env=environment, check=True)
    (gang,) = example_gangs(load(recipe))
    kind, digest = ("nemo-rl", "NEMO_RL") if gang.engine == "nemo_rl" else ("trainer", "TRAINER")
    assert gang.settings.image == f"registry.acme.example/pt/{kind}@{DIGESTS[digest]}"
    assert lint_gang(gang, []) == []


@pytest.mark.slow
def test_the_page_s_gang_is_admitted_and_its_change_refused(done: Done) -> None:
    policies = Policies(list(yaml.safe_load_all((done.folder / "manifests.yaml").read_text())))
    (gang,) = yaml.safe_load_all((done.folder / "gang.yaml").read_text())
    (refused,) = yaml.safe_load_all((done.folder / "refused.yaml").read_text())
    assert refusals(policies, LAUNCHER, gang) == []
    assert refusals(policies, LAUNCHER, refused) == ["gang-account"]


def test_manifests_and_gangs_are_of_these_apis() -> None:
    apis = {api for each in OPERATORS.values() for api in each["apis"]}
    assert len(apis) == len({api.partition("/")[0] for api in apis}), "one version of each group"
    groups = {api.partition("/")[0] for api in apis}
    objects = [obj for name in ("eks-spot-h200", "eks-a100", "gke") for obj in overlay(name)]
    objects += [obj for case in CASES.values() for obj in render(case)]
    objects += [yaml.safe_load(file.read_text()) for file in (MANIFESTS / "components").glob("*/queue.yaml")]
    used = {obj["apiVersion"] for obj in objects} | {f"{each.group}/{each.version}" for each in RESOURCES.values()}
    assert {api for api in used if api.partition("/")[0] in groups} == apis
    assert of_kind(objects, "JobSet", "RayJob", "ClusterQueue")


@pytest.mark.shared
def test_the_schemas_are_of_these_versions(shared_data: Path) -> None:
    sources = (shared_data / "k8s-schemas" / "SOURCES.md").read_text()
    tags = dict(re.findall(r"^\| ([\w-]+) \| \S+ \| v([\d.]+) \|", sources, re.MULTILINE))
    assert {name: tags[name] for name in OPERATORS} == {name: each["version"] for name, each in OPERATORS.items()}
