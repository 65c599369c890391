import pytest

from pipeline.recipe import Selection
from pipeline.selection.choose import choose
from pipeline.selection.evidence import Evidence

AUTO = Selection()
GOOD = Evidence(
    traces=5000,
    labelled=4800,
    coverage=0.96,
    prompts=1500,
    verifiable_prompts=1300,
    verifiable_share=0.87,
    groups=1400,
    zero_variance_share=0.4,
    frontier_prompts=1000,
    distinct_completions=2.5,
    pairs=800,
    mean_margin=0.8,
    label_noise=0.1,
    noise_sample=900,
)


@pytest.mark.parametrize(
    ("change", "method", "lacks"),
    [
        ({}, "grpo", {}),
        ({"verifiable_share": 0.2}, "dpo", {"grpo": "verifiable share of prompts: 0.20, needs >= 0.50"}),
        ({"frontier_prompts": 99}, "dpo", {"grpo": "verifiable prompts with something to learn: 99, needs >= 100"}),
        ({"zero_variance_share": 0.9}, "dpo", {"grpo": "share of zero-variance groups: 0.90, needs <= 0.80"}),
        ({"label_noise": 0.4}, "grpo", {"dpo": "label noise: 0.40, needs <= 0.25"}),
        ({"pairs": 10}, "grpo", {"dpo": "preference pairs: 10, needs >= 200"}),
        ({"verifiable_share": 0.2, "pairs": 10}, "none", {"grpo": "0.20, needs >= 0.50", "dpo": "10, needs >= 200"}),
        ({"coverage": 0.3}, "none", {"grpo": "label coverage: 0.30", "dpo": "label coverage: 0.30"}),
    ],
)
def test_the_rule(change: dict[str, float], method: str, lacks: dict[str, str]) -> None:
    decision = choose(GOOD.model_copy(update=change), AUTO, min_coverage=0.5)
    assert decision.method == method
    assert decision.lacks.keys() == lacks.keys()
    for name, what in lacks.items():
        assert what in "; ".join(decision.lacks[name])
    assert decision.reasons
    assert not decision.forced


def test_a_forced_method_says_so_and_what_it_lacks() -> None:
    decision = choose(GOOD.model_copy(update={"pairs": 10}), Selection(method="dpo"), min_coverage=0.5)
    assert (decision.method, decision.forced) == ("dpo", True)
    assert "needs >= 200" in decision.lacks["dpo"][0]


@pytest.mark.parametrize(("method", "change"), [("grpo", {"verifiable_prompts": 0}), ("dpo", {"pairs": 0})])
def test_a_forced_method_without_material_does_not_train(method: str, change: dict[str, int]) -> None:
    decision = choose(GOOD.model_copy(update=change), AUTO.model_copy(update={"method": method}), min_coverage=0.5)
    assert decision.method == "none"
