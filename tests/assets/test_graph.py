"""What people see of the definitions, and what starts by itself."""

from jobs.definitions import definitions


def test_every_asset_has_a_description_an_owner_and_a_kind() -> None:
    for node in definitions.resolve_asset_graph().asset_nodes:
        assert node.description, node.key
        assert node.owners, node.key
        assert node.kinds, node.key


def test_the_training_pool_serialises_trainings() -> None:
    graph = definitions.resolve_asset_graph()
    pools = {node.key.to_user_string(): node.pools for node in graph.asset_nodes if node.pools}
    assert pools == {"policy_checkpoint": {"training"}}


def test_what_starts_work_is_off_until_somebody_turns_it_on() -> None:
    repository = definitions.get_repository_def()
    jobs = {"preference_tuning", "label_traces", "canary_rollout", "forget", "lake_upkeep"}
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
    }
