"""A decision as Dagster's Launchpad has it: it names its rollout and its candidate, for a form is easily sent late."""

from typing import NamedTuple

from assets.resources import Deployment
from pipeline.rollout.decision import MIN_DIGEST, RolloutDecision
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Action


class LaunchpadForm(NamedTuple):
    """What a person filled in."""

    action: Action
    rollout: str
    digest: str
    """Of the candidate, or its beginning."""
    reason: str
    by: str


def launchpad_decision(settings: Deployment, form: LaunchpadForm) -> RolloutDecision:
    """A decision that names its rollout and its candidate. Raises ValueError when they are not those of the latest."""
    state = read_state(settings.store(), settings.recipe().base_model.name)
    latest = state.proposal.version.model.digest if state.proposal else ""
    if len(form.digest) < MIN_DIGEST or not latest.startswith(form.digest) or form.rollout != state.rollout:
        raise ValueError(
            f"The decision is about rollout {form.rollout or '(none)'} of model {form.digest or '(none)'}; the latest "
            f"is {f'{state.rollout} of {latest[:MIN_DIGEST]}' if latest else 'none'}. Look at it, and decide again."
        )
    return RolloutDecision(action=form.action, reason=form.reason, by=form.by, rollout=form.rollout)
