"""The asset graph as it stands: a change of shape is a decision, and this snapshot is where it is made."""

from jobs.definitions import definitions

GRAPH = {
    "traces": ("traces", []),
    "reward_labels": ("rewards", ["traces"]),
    "reward_model": ("rewards", ["reward_labels"]),
    "samples": ("rewards", ["reward_labels", "reward_model"]),
    "preference_dataset": ("selection", ["reward_labels", "reward_model", "samples"]),
    "training_plan": ("selection", ["preference_dataset"]),
    "policy_checkpoint": ("training", ["training_plan"]),
    "eval_report": ("evaluation", ["policy_checkpoint"]),
    "gate_verdict": ("evaluation", ["eval_report"]),
    "model_version": ("registry", ["gate_verdict"]),
    "canary": ("registry", ["gate_verdict", "model_version"]),
    "champion": ("registry", ["canary"]),
    "governed_days": ("traces", ["traces"]),
    "labelled_days": ("rewards", ["reward_labels"]),
    "kpi": ("registry", ["canary", "model_version", "policy_checkpoint"]),  # no stage: observed, never materialised
}
CHECKS = {
    ("traces", "every_row_accounted_for"),
    ("traces", "admitted_share"),
    ("reward_labels", "coverage"),
    ("reward_labels", "agrees_with_people"),
    ("reward_labels", "distribution_is_stable"),
    ("reward_labels", "custom_reward_varies"),
    ("reward_model", "admitted"),
    ("training_plan", "enough_signal"),
    ("training_plan", "launchable"),
    ("policy_checkpoint", "healthy"),
    ("gate_verdict", "candidate_is_better"),
}


def test_the_graph_is_the_pipeline() -> None:
    graph = definitions.resolve_asset_graph()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    found = {n.key.to_user_string(): (n.group_name, sorted(p.to_user_string() for p in n.parent_keys)) for n in nodes}
    assert found == GRAPH


def test_every_asset_has_a_description_an_owner_and_a_kind() -> None:
    for node in definitions.resolve_asset_graph().asset_nodes:
        assert node.description, node.key
        assert node.owners, node.key
        assert node.kinds, node.key


def test_the_checks_are_where_a_person_looks() -> None:
    keys = definitions.resolve_asset_graph().asset_check_keys
    assert {(key.asset_key.to_user_string(), key.name) for key in keys} == CHECKS


def test_the_training_pool_serialises_trainings() -> None:
    graph = definitions.resolve_asset_graph()
    pools = {node.key.to_user_string(): node.pools for node in graph.asset_nodes if node.pools}
    assert pools == {"policy_checkpoint": {"training"}}


def test_what_starts_work_is_off_until_somebody_turns_it_on() -> None:
    repository = definitions.get_repository_def()
    jobs = {"preference_tuning", "label_traces", "canary_rollout", "review_sample", "forget", "lake_upkeep", "tell"}
    assert jobs <= set(repository.job_names)
    for each in (*repository.sensor_defs, *repository.schedule_defs):
        assert each.description, each.name
    assert {s.name: s.default_status.value for s in repository.sensor_defs} == {
        "champion_changed": "STOPPED",
        "feedback_drift": "STOPPED",
        "new_labels": "STOPPED",
        "notices_due": "STOPPED",
        "rollout_due": "STOPPED",
        "gang_orphaned": "RUNNING",  # it ends work, and only that of a cancelled run
        "gang_held": "RUNNING",  # and this one what has not begun and no run follows
    }
    assert {s.name: s.default_status.value for s in repository.schedule_defs} == {
        "nightly": "STOPPED",
        "hourly_labels": "STOPPED",
        "weekly": "STOPPED",
        "weekly_review": "STOPPED",
    }
