import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.recipe import Kubernetes, load
from pipeline.recipe.overrides import split

ROOT = Path(__file__).parents[3]
EMBEDDED = ROOT / "jobs" / "recipes" / "embedded.yaml"


SECRET = "sk-canary-0123456789"


@pytest.mark.parametrize(
    "override",
    [
        f"training.api_key={SECRET}",
        f"rewards.jugde={{api_key: {SECRET}}}",
        f"training.seed={SECRET}",
        f"traces.source.kind={SECRET}",
        f"training.seed.x={SECRET}",
        f"evaluation.suites.7={SECRET}",
        f"training.seed=[{SECRET}",
        f"base_model.uri=[{SECRET}]",
        f"trainning={{password: {SECRET}, url: 'https://ann:{SECRET}@host/'}}",
        f"{SECRET}",
    ],
)
def test_no_message_shows_a_secret(override: str) -> None:
    with pytest.raises(ValueError) as raised:
        load(EMBEDDED, [override])
    assert SECRET not in str(raised.value)


def test_overrides_reach_their_field() -> None:
    recipe = load(EMBEDDED, ["training.grpo.learning_rate=1e-5", "selection.method=dpo", "rollout.weights=[10, 100]"])
    assert recipe.training.grpo.learning_rate == 1e-5
    assert recipe.selection.method == "dpo"
    assert recipe.rollout.weights == (10, 100)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("training.grpo.stepz=3", r"training\.grpo\.stepz: there is no such field\. Did you mean steps\?"),
        (
            "trainning.seed=3",
            r"trainning: there is no such field\. Did you mean training\? \(override trainning\.seed\)",
        ),
        ("training.learning_rate=1", r"Did you mean training\.grpo\.learning_rate or training\.dpo\.learning_rate or "),
        (
            "selection.method=gpro",
            r"selection\.method: 'gpro' is none of auto, grpo, dpo, sft, kto\. Did you mean",
        ),
        ("traces.source.kind=otell", r"traces\.source\.kind: otell is none of demo, .*\. Did you mean otel\?"),
        ("traces.source={uri: x}", r"traces\.source\.kind: is missing\. Say which: demo, langfuse_export"),
        ("traces.source=3", r"traces\.source: 3 is a value, and a section belongs there"),
        ("training.grpo.num_minibatches=7", r"training\.grpo: 16 prompts x 8 completions do not split"),
        ("training.seed={a: 1, a: 2}", r"column 8: the key 'a' is there twice"),
        ("training.grpo.steps=many", r"training\.grpo\.steps: .*valid integer.*got 'many'"),
        ("traces.source.kind=carrier_pigeon", "carrier_pigeon"),
        ("evaluation.alpha=1.5", r"evaluation\.alpha"),
        ("name.sub=1", "is a value, not a section"),
        ("base_model.name=../../evil", r"base_model\.name: .*pattern.*got '\.\./\.\./evil'"),
        ("base_model.name=a'b", r"base_model\.name: .*pattern"),
        ("nonsense", "KEY=VALUE"),
        ("training.seed=[", "is not YAML"),
        ("training.seed=2024-99-99", "is not YAML"),
        ("training.grace_s=.inf", r"training\.grace_s: Input should be a finite number \(got inf"),
        ("training.timeout_s=inf", r"training\.timeout_s: Input should be a finite"),
        ("rollout.dwell_s=[1, .nan, 3]", r"rollout\.dwell_s\.1: Input should be a finite"),
        ("compute.accelerator.usd_per_hour=.inf", r"usd_per_hour: .*finite"),
        ("compute.nodes=100000", r"compute\.nodes: .*less than or equal to 1000"),
        ("training.checkpoints.interruption_every_s=5e-324", r"interruption_every_s: .*greater than or equal to 1"),
    ],
)
def test_a_wrong_recipe_names_the_key_and_the_value(override: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load(EMBEDDED, [override])


def test_a_kind_answers_for_its_own_fields_alone() -> None:
    with pytest.raises(ValueError) as refused:
        load(EMBEDDED, ["traces.source={kind: langfuse_export, urii: /exports}"])
    _, *lines = str(refused.value).splitlines()
    assert lines == ["  traces.source.urii: there is no such field. Did you mean uri? (override traces.source)"]


def test_every_mistake_has_one_line(tmp_path: Path) -> None:
    text = EMBEDDED.read_text().replace("steps: 32", "stepz: 32").replace("name: arithmetic", "nam: arithmetic")
    (tmp_path / "recipe.yaml").write_text(text.replace("method: auto", "method: best"))
    with pytest.raises(ValueError) as refused:
        load(tmp_path / "recipe.yaml", ["training.seed=x"])
    head, *lines = str(refused.value).splitlines()
    assert str(tmp_path / "recipe.yaml") in head
    paths = [line.split(":")[0].strip() for line in lines]
    assert sorted(paths) == ["base_model.nam", "selection.method", "training.grpo.stepz", "training.seed"]


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("", []),
        (" training.seed=3  selection.method=dpo ", ["training.seed=3", "selection.method=dpo"]),
        ("base_model.uri='/models/my chat model' training.seed=3", ["base_model.uri=/models/my chat model", "3"]),
        ("'base_model.uri=/models/my chat model' training.seed=3", ["base_model.uri=/models/my chat model", "3"]),
        ('traces.source={"kind":"otel","uri":"/a b"}', ["traces.source={kind: otel, uri: /a b}"]),
    ],
)
def test_overrides_may_hold_spaces(text: str, overrides: list[str]) -> None:
    given = ["training.seed=3" if override == "3" else override for override in overrides]
    assert load(EMBEDDED, split(text)) == load(EMBEDDED, given)


@pytest.mark.parametrize("text", ["base_model.uri='/models/my", 'training.seed=3 name="', "name=it's"])
def test_a_quote_without_its_other_half_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quote without its other half .* Write a value with spaces like"):
        split(text)


def test_a_section_that_is_written_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(EMBEDDED.read_text() + "\ntraining:\n  seed: 4\n")
    with pytest.raises(ValueError, match=r"line \d+, column 1: the key 'training' is there twice"):
        load(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "is not YAML: line 1, column 5"),
        ("a: 2024-99-99", "is not YAML"),
        ("a: !!timestamp x", "is not YAML"),
        ("[" * 700, "is not YAML"),
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


def test_a_missing_recipe_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    where = rf"No recipe at {ROOT}/nowhere\.yaml \(nowhere\.yaml is relative to {ROOT}\)"
    with pytest.raises(ValueError, match=where):
        load("nowhere.yaml")
    with pytest.raises(ValueError, match=r"Did you mean embedded\.yaml\?"):
        load("jobs/recipes/embeded.yaml")


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
        ("max_restarts", 2**31),
        ("shm_gb", 10**9),
        ("start_timeout_s", float("inf")),
        ("start_timeout_s", float("nan")),
        ("start_timeout_s", 1e300),
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


def test_a_reward_model_enters_the_digest_where_it_is_asked() -> None:
    digest = load(EMBEDDED).digest()
    assert load(EMBEDDED, ["rewards.reward_model=null"]).digest() == digest
    asked = load(EMBEDDED, ["rewards.reward_model={}"])
    assert asked.digest() != digest
    assert load(EMBEDDED, ["rewards.reward_model={timeout_s: 9}"]).digest() == asked.digest()
    assert load(EMBEDDED, ["rewards.reward_model={epochs: 9}"]).digest() != asked.digest()
    weights = ["rewards.judged.judge=1"]
    assert load(EMBEDDED, [*weights, "rewards.judged.reward_model=0"]).digest() == load(EMBEDDED, weights).digest()
    assert load(EMBEDDED, [*weights, "rewards.judged.reward_model=1"]).digest() != load(EMBEDDED, weights).digest()


@pytest.mark.slow
def test_the_digest_is_the_same_in_every_process() -> None:
    override = "traces.regions_allowed=[eu,uk,kr,us]"
    code = f"from pipeline.recipe import load; print(load({str(EMBEDDED)!r}, [{override!r}]).digest())"
    by_name = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(by_name) == 1


def test_the_gate_asks_its_own_judge_where_it_has_one() -> None:
    labels = "rewards.judge={model: labels, digest: l}"
    judged = "evaluation.suites=[{kind: items, preset: arithmetic}, {kind: judged, name: better, over: arithmetic}]"
    own = "evaluation.judge={model: gate, digest: g}"
    named = [load(EMBEDDED, list(each)).gate_judge for each in ([labels, judged, own], [labels, judged], [labels, own])]
    assert [judge and judge.model for judge in named] == ["gate", "labels", None]
    assert load(EMBEDDED, [labels, own]).digest() != load(EMBEDDED, [labels]).digest()


def test_a_source_without_a_world_keeps_its_digest() -> None:
    same = load(EMBEDDED, ["traces.source.world=arithmetic", "traces.source.desk=null", "evaluation.judge=null"])
    assert same.digest() == load(EMBEDDED).digest()
    assert load(EMBEDDED, ["traces.source.world=desk"]).digest() != load(EMBEDDED).digest()
