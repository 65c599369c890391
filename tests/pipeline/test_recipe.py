import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.recipe import Kubernetes, load

ROOT = Path(__file__).parent.parent.parent
EMBEDDED = ROOT / "jobs" / "recipes" / "embedded.yaml"


def test_overrides_reach_their_field() -> None:
    recipe = load(EMBEDDED, ["training.grpo.learning_rate=1e-5", "selection.method=dpo", "rollout.weights=[10, 100]"])
    assert recipe.training.grpo.learning_rate == 1e-5
    assert recipe.selection.method == "dpo"
    assert recipe.rollout.weights == (10, 100)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("training.grpo.stepz=3", r"training\.grpo\.stepz: Extra inputs are not permitted"),
        ("training.grpo.steps=many", r"training\.grpo\.steps: .*valid integer.*got 'many'"),
        ("traces.source.kind=carrier_pigeon", "carrier_pigeon"),
        ("evaluation.alpha=1.5", r"evaluation\.alpha"),
        ("name.sub=1", "is a value, not a section"),
        ("nonsense", "KEY=VALUE"),
        ("training.seed=[", "is not YAML"),
        ("training.seed=2024-99-99", "is not YAML"),
        ("training.grace_s=.inf", r"training\.grace_s: Input should be a finite number \(got inf"),
        ("training.timeout_s=inf", r"training\.timeout_s: Input should be a finite"),
        ("rollout.dwell_s=[1, .nan, 3]", r"rollout\.dwell_s\.1: Input should be a finite"),
        ("compute.accelerator.usd_per_hour=.inf", r"usd_per_hour: .*finite"),
        ("compute.nodes=100000", r"compute\.nodes: .*less than or equal to 1000"),
        ("rewards.feedback.retry_window_s=1e13", r"retry_window_s: .*less than or equal to 1000000000"),
        ("training.checkpoints.interruption_every_s=5e-324", r"interruption_every_s: .*greater than or equal to 1"),
    ],
)
def test_a_wrong_recipe_names_the_key_and_the_value(override: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load(EMBEDDED, [override])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "is not YAML"),
        ("a: 2024-99-99", "is not YAML"),
        ("a: !!timestamp x", "is not YAML"),
        ("[" * 5000, "is not YAML"),
        ("- a", "not a mapping"),
        ("", "not a mapping"),
        ("name: &a {b: *a}", "recipe.yaml"),
    ],
)
def test_a_file_that_is_no_recipe_says_so(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load(file)


def test_a_missing_recipe_says_where() -> None:
    with pytest.raises(ValueError, match=r"No recipe at .*nowhere\.yaml"):
        load("nowhere.yaml")


def test_a_file_that_is_no_text_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\x80\xff\x00")
    with pytest.raises(ValueError, match=r"model\.bin cannot be read: .*UTF-8"):
        load(tmp_path / "model.bin")


def test_a_path_too_long_says_so() -> None:
    with pytest.raises(ValueError, match=r"cannot be read: .*too long"):
        load("a" * 5000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", "a.b"),
        ("namespace", "a" * 64),
        ("namespace", "a\n"),
        ("claim", "Checkpoints"),
        ("service_account", "-trainer"),
        ("queue", "a" * 64),
        ("queue", ""),
        ("image", "trainer @sha256:0"),
        ("image", ""),
        ("env", {"MAX TOKENS": "1"}),
        ("env", {"9LIVES": "1"}),
        ("ttl_s", 2**31),
        ("max_restarts", 2**31),
        ("shm_gb", 10**9),
        ("start_timeout_s", float("inf")),
        ("start_timeout_s", float("nan")),
        ("start_timeout_s", 1e300),
        ("poll_s", 1e9),
        ("storage_gb", float("inf")),
    ],
)
def test_what_the_api_server_would_refuse(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=rf"1 validation error for Kubernetes\n{field}"):
        Kubernetes.model_validate({"image": "trainer"} | {field: value})


def test_names_that_the_api_server_takes() -> None:
    given = {"claim": "fsx.a-1", "queue": "team.gpus", "namespace": "0a", "env": {"a.b-C_1": "", "_X": "1"}}
    assert Kubernetes.model_validate({"image": "localhost:5000/t:1"} | given).claim == "fsx.a-1"


def test_the_digest_is_about_results_not_places() -> None:
    digest = load(EMBEDDED).digest()
    assert load(EMBEDDED, ["data_root=/elsewhere", "rollout.min_canary_requests=7"]).digest() == digest
    assert load(EMBEDDED, ["training.seed=99"]).digest() != digest


def test_the_digest_is_the_same_in_every_process() -> None:
    override = "traces.regulated_regions=[eu,uk,kr,us]"
    code = f"from pipeline.recipe import load; print(load({str(EMBEDDED)!r}, [{override!r}]).digest())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
