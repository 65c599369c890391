"""`pt k8s`: what it prints and its exit codes, for good input and for bad."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jobs.cluster import main
from k8s.gang import example_gangs
from k8s.render import render
from pipeline.recipe import load

from .fake_api import Answer, FakeApi
from .schemas import DATA

ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "jobs" / "recipes"
ON_CLUSTERS = ["eks_workshop", "gke_deepscaler", "spot_h200_dpo", "spot_h200_grpo"]
OVERLAYS = {"eks-a100": "eks_workshop", "eks-spot-h200": "spot_h200_dpo", "gke": "gke_deepscaler"}


def recipe(name: str) -> str:
    return str(RECIPES / f"{name}.yaml")


def imaged(name: str) -> list[str]:
    """The recipe with its image built."""
    kind = "trainer" if name == "spot_h200_dpo" else "nemo-rl"
    image = f"registry.example.com/preference-tuning/{kind}@sha256:{'5' * 64}"
    return [recipe(name), "--override", f"compute.kubernetes.image={image}"]


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_recipes_and_their_overlays_have_no_mistake(
    overlay: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("no kubectl to build the overlay")
    folder = ROOT / "k8s" / "manifests" / "overlays" / overlay
    built = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(built.stdout))
    schemas = ["--schemas", str(DATA)] if DATA.is_dir() else []
    assert main(["lint", *imaged(OVERLAYS[overlay]), "--manifests", "-", *schemas]) == 0
    assert "errors: 0, warnings: 0" in capsys.readouterr().out


def test_a_backend_that_the_overlay_lacks_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    manifests = ROOT / "k8s" / "manifests"
    files = [str(manifests / folder) for folder in ("bases/rbac/roles.yaml", "components/jobset/role.yaml")]
    assert main(["lint", *imaged("spot_h200_dpo"), "--manifests", *files]) == 0
    assert main(["lint", *imaged("spot_h200_grpo"), "--manifests", *files]) == 1
    assert "account launcher may not create rayjobs of ray.io" in capsys.readouterr().out
    files[1] = files[1].replace("jobset", "rayjob")
    assert main(["lint", *imaged("spot_h200_grpo"), "--manifests", *files]) == 0


def test_a_report_says_what_where_why_and_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", *imaged("spot_h200_dpo"), "compute.kubernetes.instance_type=g6e.12xlarge"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("  error: gpus-over-instance")
    assert lines[at + 1].strip() == "recipe compute.processes: 3 nodes of 8 GPUs, but g6e.12xlarge has 4"
    assert lines[at + 2].strip().startswith("why: ")
    assert lines[at + 3].strip().startswith("fix: Set it to at most the GPUs of the instance")
    assert lines[-1].startswith("errors: ")


@pytest.mark.parametrize("name", ON_CLUSTERS)
def test_render_prints_what_would_be_applied(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", recipe(name)]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [
        obj for gang in example_gangs(load(recipe(name))) for obj in render(gang)
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a: [1", "is not YAML"),
        (b"just text", "(str) is no object"),
        (b"kind: Job\n---\n- 1\n- 2", "Document 2"),
        (b"kind: 5", "give it a kind"),
        (b"\xff\xfe\x00bad", "cannot be read"),
        (b"", "No object"),
        (b"{kind: List, items: []}", "No object"),
        (None, "cannot be read"),
    ],
)
def test_manifests_that_are_none(
    content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "x.yaml").write_bytes(content)
    assert main(["lint", "--manifests", str(tmp_path / "x.yaml")]) == 2
    assert says in capsys.readouterr().err


POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu}
spec: {replicas: 2, weight: 50}
---
apiVersion: v1
kind: Service
metadata: {name: model, namespace: serving}
spec: {port: [{port: 80}]}
"""


@pytest.fixture
def pool(tmp_path: Path) -> str:
    """A file of two objects, beside a folder with the definition of one of them."""
    rule = {"rule": "!(has(self.replicas) && has(self.weight))", "message": "weight beside replicas"}
    definition = {"properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule]}}}
    (tmp_path / "karpenter.sh_v1_NodePool.json").write_text(json.dumps(definition))
    (tmp_path / "pool.yaml").write_text(POOL)
    return str(tmp_path / "pool.yaml")


def test_schemas_are_asked_first(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(Path(pool).parent)
    assert main(["lint", "--manifests", pool, "--schemas", folder]) == 1
    output = capsys.readouterr().out
    assert "NodePool/gpu spec: weight beside replicas" in output and "'port' was unexpected" in output
    assert main(["lint", "--manifests", pool]) == 1, "Kubernetes' own kinds need no folder"
    output = capsys.readouterr().out
    assert "Service/model" in output and "NodePool/gpu" not in output and "none for custom kinds" in output


def test_a_server_is_asked_by_a_dry_run(
    pool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api, kinds = FakeApi(), [{"name": "services", "kind": "Service", "namespaced": True}]

    def answer(method: str, path: str) -> Answer:
        if method == "GET":
            return Answer(200, {"resources": kinds if path == "/api/v1" else []})
        return Answer(422, {"message": "spec.ports: Required value", "details": {"name": "model"}})

    monkeypatch.setattr(api, "fault", answer)
    monkeypatch.setattr("jobs.cluster.connect", api.client)
    assert main(["lint", "--manifests", pool, "--server"]) == 1
    output = capsys.readouterr().out
    assert "spec.ports: Required value" in output and "karpenter.sh/v1 has no kind NodePool" in output
    assert api.asked[-1] == ("PATCH", "/api/v1/namespaces/serving/services/model")
    assert api.objects == {}
