import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.recipe import load

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
    ],
)
def test_a_wrong_recipe_names_the_key_and_the_value(override: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load(EMBEDDED, [override])


@pytest.mark.parametrize(
    ("text", "complaint"), [("a: [", "is not YAML"), ("- a", "not a mapping"), ("", "not a mapping")]
)
def test_a_file_that_is_no_recipe_says_so(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load(file)


def test_a_missing_recipe_says_where() -> None:
    with pytest.raises(ValueError, match=r"No recipe at .*nowhere\.yaml"):
        load("nowhere.yaml")


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
