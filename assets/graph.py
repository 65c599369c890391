"""The loop, to be read in one place: each asset with what it takes, in the order of a run.

    traces                    production traces that may be learned from        assets/traces.py      pipeline/traces
    reward_labels             <- traces                                         assets/rewards.py     pipeline/rewards
    reward_model              <- reward_labels                                  assets/rewards.py     pipeline/rewards
    samples                   <- reward_labels, reward_model                    assets/rewards.py     pipeline/selection
    preference_dataset        <- reward_labels, reward_model, samples           assets/selection.py   pipeline/selection
    training_plan             <- preference_dataset                             assets/selection.py   pipeline/training
    policy_checkpoint         <- training_plan                                  assets/training.py    pipeline/training
    eval_report               <- policy_checkpoint                              assets/evaluation.py  evals
    gate_verdict              <- eval_report                                    assets/evaluation.py  evals
    model_version             <- gate_verdict                                   assets/registry.py    pipeline/registry
    canary                    <- model_version, gate_verdict                    assets/registry.py    pipeline/rollout

An asset is thin: it reads the record of the one before (assets/resources.py), calls the stage, and shows what came of
it. The job `canary_rollout` takes the rollout that `canary` opens to its end.
"""

from collections.abc import Sequence

import dagster as dg

from assets import evaluation, registry, rewards, selection, traces, training

ASSETS = [
    traces.traces,
    rewards.reward_labels,
    rewards.reward_model,
    rewards.samples,
    selection.preference_dataset,
    selection.training_plan,
    training.policy_checkpoint,
    evaluation.eval_report,
    evaluation.gate_verdict,
    registry.model_version,
    registry.canary,
]


def of_model(
    assets: Sequence[dg.AssetsDefinition | dg.AssetSpec], prefix: str | None
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """The assets with the recipe's `key_prefix` before their keys."""
    keys = {each.key: each.key.with_prefix(prefix or []) for each in assets}
    return [
        each.with_attributes(asset_key_replacements=keys)
        if isinstance(each, dg.AssetsDefinition)
        else each.replace_attributes(key=keys[each.key], deps=[keys[dep.asset_key] for dep in each.deps])
        for each in assets
    ]
