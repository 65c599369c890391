"""The asset `reward_model` over the embedded traffic: its thumbs, through consent and decontamination, to a report."""

from pathlib import Path

import dagster as dg
import pytest

from assets.graph import ASSETS
from assets.records import REWARD_MODEL
from assets.resources import records
from pipeline.rewards.reward_model.stage import NOT_ASKED
from tests.loop import deployment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SMALL = "{min_thumbs: 50, min_users: 10, epochs: 1, probes: [{kind: refuse, name: refusal}]}"


@pytest.mark.variant
def test_the_asset_trains_on_the_traffic_s_thumbs(tmp_path: Path) -> None:
    """First without the section, then with it, which is another iteration."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        for overrides, trained in (((), False), ((f"rewards.reward_model={SMALL}",), True)):
            settings = deployment(tmp_path / "data", overrides)
            done = dg.materialize(
                ASSETS[:3],
                instance=instance,
                resources={"deployment": settings, "io_manager": records},
                raise_on_error=False,
            )
            assert done.success, [str(event) for event in done.all_events if event.is_failure]
            report = REWARD_MODEL.read(settings.store(), settings.latest().id)
            (shown,) = done.asset_materializations_for_node("reward_model")
            assert shown.metadata["trained"].value is trained
            (check,) = [each for each in done.get_asset_check_evaluations() if each.check_name == "admitted"]
            if not trained:
                assert (report.model, report.reason) == (None, NOT_ASKED)
                assert check.passed
                continue
            assert report.model is not None, report.reason
            assert report.base is not None
            assert report.base.digest == settings.latest().champion.digest
            assert report.counts.users > 10
            assert sum(thumbs for thumbs, _ in report.split.values()) == report.counts.thumbs
            assert shown.metadata["record"].value["users_hash"] == report.users_hash
            assert check.passed is report.admitted
