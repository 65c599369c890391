"""A rollout for people: its status (where it stands, what was measured, what it waits for, what may be decided), as
rows and sentences for the terminal and Dagster, and its plot."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

from pipeline.core.estimate import Z95, Estimate
from pipeline.core.storage import Record, Store
from pipeline.rewards.findings import JudgeSpending, spent
from pipeline.rollout.decision import decisions
from pipeline.rollout.evidence import ArmSums
from pipeline.rollout.fold import RolloutLog
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.propose import ChampionState
from pipeline.rollout.record import TERMINAL, Action, Phase, RolloutEvent, RolloutState
from pipeline.rollout.router import Split, Unrouted, Unsettled
from pipeline.rollout.rules import blind_spots, wanted_graded
from pipeline.rollout.shares import Ratio, variance
from pipeline.views import BLUE, DARK_GREY, ORANGE, Plot, text_plot

NOTHING = "nothing: a candidate that passes the gate is registered, and people deploy it"
"""What a deployment without a router waits for."""
UNROUTED = "rollout.traffic to name the router that it began with"


class RolloutStatus(Record):
    """The model's latest rollout, as its log has it (`state`), and what is known besides."""

    model: str
    serving_version: int
    """0 is the recipe's base model."""
    serving_digest: str
    state: RolloutState
    routed: bool = True
    """Whether the deployment has a router; without one `router_reason` says what that means."""
    since: float | None = None
    """Seconds since the epoch at which phase and stage became what they are."""
    weight: int = 0
    router: int | None = None
    """Percent on the canary that the router reads; None when it reads no split of this rollout."""
    router_reason: str = ""
    by: str = ""
    last_look: str = ""
    last_look_at: float | None = None
    wanted_graded: int = 0
    waits_for: str = ""
    cannot_see: tuple[str, ...] = ()
    decisions: tuple[Action, ...] = ()


def status(
    model_name: str, serving: ChampionState, log: RolloutLog, split: Split | Unsettled | None, now: float
) -> RolloutStatus:
    """`serving`: the champion. `split`: what the router reads. Pure."""
    state, events = log.state, log.events
    bare = RolloutStatus(
        model=model_name,
        serving_version=serving.version,
        serving_digest=serving.model.digest,
        state=state,
        routed=not isinstance(split, Unrouted),
        router_reason=split.reason if isinstance(split, Unsettled) else "",
    )
    if state.proposal is None:
        return bare.model_copy(update={"waits_for": "a candidate that passes the gate" if bare.routed else NOTHING})
    policy = state.proposal.policy
    looked = [e for e in events if e.rollout == state.rollout and (e.look is not None or e.missed)]
    by_people = [e for e in events if e.rollout == state.rollout and e.by][-1:]
    lasting = [e.by for e in by_people if e.epoch == state.requested_epoch or e.phase is Phase.ROLLING_BACK]
    return bare.model_copy(
        update={
            "since": next(e.at for e in events if e.epoch == state.requested_epoch),
            "by": lasting[0] if lasting else "",
            "weight": state.canary_weight,
            "router": split.canary_weight if isinstance(split, Split) and split.rollout == state.rollout else None,
            "last_look": looked[-1].reason if looked else "",
            "last_look_at": looked[-1].at if looked else None,
            "wanted_graded": wanted_graded(state.watch.evidence, policy, policy.canary_weights[state.stage]),
            "waits_for": _waits_for(state) if bare.routed else UNROUTED if state.active else NOTHING,
            "cannot_see": blind_spots(state.watch.evidence, policy) if state.active else (),
            "decisions": decisions(state, now),
        }
    )


def share_estimate(ratio: Ratio, policy: RolloutPolicy) -> Estimate:
    """A share with its 95% interval, of users who come back; from 0 to 1 while too little is known."""
    if not ratio.trials:
        return Estimate(value=None, low=None, high=None, n=0)
    width = Z95 * math.sqrt(variance(ratio, policy.unit))
    value, n = ratio.share, round(ratio.trials)
    return Estimate(value=value, low=max(0.0, value - width), high=min(1.0, value + width), n=n)


WAITS_FOR = {
    Phase.PROPOSED: "a look at the files of both models",
    Phase.GATED: "its slot to serve it, then its first weight, {first}%",
    Phase.APPROVED: "its slot to serve it, then its first weight, {first}%",
    Phase.SHIFTING: "the router to read {weight}%",
    Phase.HELD: "a person: resume or abort it",
    Phase.ROLLING_BACK: "the router to read 0%",
}


def _waits_for(state: RolloutState) -> str:
    if state.waits_for_approval:
        approvers, by = state.opened.policy.approvers, state.opened.proposed_by or "nobody on record"
        return f"one of {', '.join(approvers)} to approve it, who did not propose it ({by} did)"
    if state.phase is Phase.OBSERVING:
        return " and ".join(_missing(state)) or "the next look"
    waits = WAITS_FOR.get(state.phase, "the next candidate that passes the gate")
    return waits.format(first=state.opened.policy.weights[0], weight=state.canary_weight)


def _missing(state: RolloutState) -> Iterator[str]:
    """What the stage that is observed still lacks."""
    policy, watch = state.opened.policy, state.watch
    wanted = wanted_graded(watch.evidence, policy, policy.canary_weights[state.stage])
    if (answers := math.ceil(wanted - watch.evidence.canary.graded)) > 0:
        yield f"about {answers:,} more answer{'s' * (answers > 1)} of the canary"
    if (seconds := policy.dwell_s[state.stage] - watch.dwell_s) > 0:
        yield f"{spell(seconds)} more of watching"


UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


class ArmRow(NamedTuple):
    name: str
    champion: str
    canary: str
    note: str = ""


class LookPoint(NamedTuple):
    """Totals of the stage after one look."""

    at: float
    weight: int
    champion: Estimate
    canary: Estimate


class RolloutFigures(NamedTuple):
    """What the log says of the rollout of one iteration's candidate."""

    phase: Phase
    """In which it ended; IDLE while it goes on."""
    reason: str
    version: int
    promoted_at: float | None
    held_h: float
    """Hours from the canary's first weight to the end."""
    grades: JudgeSpending


def rollout_figures(store: Store, log: RolloutLog) -> Iterator[tuple[str, RolloutFigures]]:
    """By the iteration that the candidate came out of; of several rollouts of one, the last."""
    state = log.state
    by_rollout: dict[str, list[RolloutEvent]] = {}
    for event in log.events:
        by_rollout.setdefault(event.rollout, []).append(event)
    for rollout, of_one in by_rollout.items():
        proposal = of_one[0].proposal
        assert proposal is not None, "a log that lost its beginning is refused before this"
        ended = [event.at for event in of_one if event.phase in TERMINAL]
        reason = next((event.reason for event in reversed(of_one) if event.reason), "")
        observed = state.rollout == rollout and state.phase is Phase.OBSERVING
        served = [event.at for event in of_one if event.phase is Phase.SHIFTING]
        figures = RolloutFigures(
            phase=state.past.finished.get(rollout, Phase.IDLE),
            reason=f"waits for {_waits_for(state)}" if observed else reason,
            version=proposal.version.version,
            promoted_at=next((event.at for event in of_one if event.phase is Phase.PROMOTED), None),
            held_h=max(0.0, (ended[0] if ended else of_one[-1].at) - served[0]) / 3600 if served else 0.0,
            grades=spent(store, rollout, rollout),
        )
        yield proposal.version.iteration, figures


def arm_rows(report: RolloutStatus) -> list[ArmRow]:
    """What both arms did in this stage; nothing before the first look."""
    proposal, evidence = report.state.proposal, report.state.watch.evidence
    champion, canary = evidence.champion, evidence.canary
    if proposal is None or not champion.requests + canary.requests:
        return []
    policy, share = proposal.policy, canary.requests / (canary.requests + champion.requests)
    right, right_too = (_quality(share_estimate(arm.quality, policy)) for arm in (champion, canary))
    rows = [ArmRow("requests", f"{champion.requests:,.0f}", f"{canary.requests:,.0f} ({share:.1%})")]
    if policy.unit == "user":
        rows.append(ArmRow("users", f"{champion.users:,.0f}", f"{canary.users:,.0f}"))
    rows.append(ArmRow("right", right, right_too, "of the graded, 95% interval"))
    rows.append(ArmRow("errors", _share(champion.errors), _share(canary.errors), "requests without an answer"))
    if evidence.slow_over_s is not None:
        rows.append(ArmRow("slow", _share(champion.slow), _share(canary.slow), f"over {evidence.slow_over_s:.3g} s"))
    rows.append(ArmRow("graded", _graded(champion), _graded(canary), "of what can be graded"))
    return rows


def look_points(events: Sequence[RolloutEvent]) -> list[LookPoint]:
    points: list[LookPoint] = []
    policy, stage = None, 0
    for event in events:
        if event.proposal is not None:
            points, policy, stage = [], event.proposal.policy, 0
        if event.look is not None and policy is not None:
            evidence, weight = event.look.evidence, policy.canary_weights[stage]  # the look that ends a stage is of it
            arms = (share_estimate(arm.quality, policy) for arm in (evidence.champion, evidence.canary))
            points.append(LookPoint(event.at, weight, *arms))
        stage = event.stage
    return points


def sentences(report: RolloutStatus, now: float) -> list[tuple[str, str]]:
    """Where it stands, why, and what it waits for and since when."""
    state = report.state
    serving = f"version {report.serving_version}" if report.serving_version else "the base model"
    serving += f" ({report.serving_digest[:12]})"
    if state.proposal is None:
        none_yet = ("rollout", "none yet" if report.routed else f"none: {report.router_reason}")
        champion = ("serves", f"{serving}, all requests") if report.routed else ("champion", serving)
        return [none_yet, champion, ("waits for", report.waits_for)]
    candidate, policy, watch = state.proposal.version, state.proposal.policy, state.watch
    unread = report.router_reason or "no split of this rollout"
    read = f"the router reads {unread if report.router is None else f'{report.router}%'}"
    weights = " → ".join(f"{weight}%" for weight in policy.canary_weights)
    lines = [
        ("rollout", f"{state.rollout}, of version {candidate.version} ({candidate.model.digest[:12]})"),
        ("iteration", candidate.iteration),
        ("champion", serving),
        ("phase", f"{state.phase}{'' if report.since is None else f' since {moment(report.since, now)}'}"),
        ("weight", f"{report.weight}% on the canary, of {weights}; {read if report.routed else unread}"),
        ("why", f"{state.reason}{f' (decided by {report.by})' if report.by else ''}"),
    ]
    if report.last_look_at is not None:
        lines.append(("looks", f"{watch.looks:,}, the last at {moment(report.last_look_at, now)}"))
        if report.last_look and report.last_look != state.reason:
            lines.append(("last look", report.last_look))
    if state.active and (dwell_s := policy.dwell_s[state.stage]):
        lines.append(("dwell", f"{spell(watch.dwell_s)} of {spell(dwell_s)} with metrics"))
        graded = watch.evidence.canary.graded
        lines.append(("answers", f"{graded:,.0f} graded; 19 of 20 equal canaries pass by {report.wanted_graded:,}"))
    lines += [("cannot see", spot) for spot in report.cannot_see]
    if state.waits_for_approval:
        lines += [("gate", reason) for reason in state.proposal.reasons]
    lines.append(("waits for", report.waits_for))
    return lines


def spell(seconds: float) -> str:
    """A duration in the largest unit of which there are two or more."""
    size, unit = next((each for each in UNITS if seconds >= 2 * each[0]), UNITS[-1])
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 10 or number == round(number) else f"{number:.1f} {unit}"


def moment(at: float, now: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC ({spell(max(0.0, round(now - at)))} ago)"


def _share(ratio: Ratio) -> str:
    return f"{ratio.share:.2%}" if ratio.trials else "-"


def _quality(right: Estimate) -> str:
    value, low, high = right.value, right.low, right.high
    return "-" if value is None or low is None or high is None else f"{value:.1%} ({low:.1%} to {high:.1%})"


def _graded(arm: ArmSums) -> str:
    labelled = f" ({arm.coverage.share:.0%})" if arm.coverage.trials else ""
    return f"{arm.graded:,.0f}{labelled}"


def rollout_over_time(points: Sequence[LookPoint], title: str) -> Plot:
    """Above, the share of right answers of both arms with 95% intervals, as the stage had them by then; below, the
    canary's weight. Time is since the first look."""
    if not points:
        return text_plot("No look at this rollout yet.")
    elapsed = points[-1].at - points[0].at
    size, unit = next((each for each in UNITS if elapsed > 3 * each[0]), UNITS[-1])
    times = [(point.at - points[0].at) / size for point in points]

    def draw(figure: Any) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
        # Stages are not joined: each begins without evidence.
        for number, (_, stage) in enumerate(groupby(zip(times, points, strict=True), key=lambda each: each[1].weight)):
            at, looks = zip(*stage, strict=True)
            for name, colour, arm in (
                ("champion", BLUE, [look.champion for look in looks]),
                ("canary", ORANGE, [look.canary for look in looks]),
            ):
                _band(above, at, arm, colour, name if number == 0 else None)
        above.set(ylabel="right of the graded", title=title)
        if above.has_data():
            above.legend(frameon=False, fontsize="small")
        below.step(times, [point.weight for point in points], where="post", color=DARK_GREY)
        below.set(ylabel="canary, %", xlabel=f"{unit} since the first look", ylim=(-5, 105))

    return Plot(draw, 8, 4.5)


def _band(axes: Any, times: Sequence[float], arm: Sequence[Estimate], colour: str, name: str | None) -> None:
    """A line through the values, and their intervals; a look that graded nothing leaves a gap."""
    missing = float("nan")
    values, lows, highs = (
        [missing if each is None else each for each in column]
        for column in zip(*((each.value, each.low, each.high) for each in arm), strict=True)
    )
    axes.fill_between(times, lows, highs, color=colour, alpha=0.2, linewidth=0)
    axes.plot(times, values, color=colour, label=name, marker=".", markersize=3, linewidth=1.2)
