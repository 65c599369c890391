"""A decision as Dagster's Launchpad has it: it names its rollout and its candidate, for a form is easily sent late."""

from assets.resources import Deployment
from jobs.rollout.approve import signed_decision
from pipeline.rollout.decision import MIN_DIGEST, RolloutDecision
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Action


def launchpad_decision(
    settings: Deployment, action: Action, rollout: str, digest: str, reason: str, by: str, signature: str
) -> RolloutDecision:
    """A decision that names its rollout and its candidate. Raises ValueError when they are not those of the latest."""
    state = read_state(settings.store(), settings.recipe().base_model.name)
    latest = state.proposal.version.model.digest if state.proposal else ""
    if len(digest) < MIN_DIGEST or not latest.startswith(digest) or rollout != state.rollout:
        raise ValueError(
            f"The decision is about rollout {rollout or '(none)'} of model {digest or '(none)'}; the latest is "
            f"{f'{state.rollout} of {latest[:MIN_DIGEST]}' if latest else 'none'}. Look at it, and decide again."
        )
    if action == "approve":
        return signed_decision(settings, signature, rollout, reason)
    return RolloutDecision(action=action, reason=reason, by=by, rollout=rollout)
