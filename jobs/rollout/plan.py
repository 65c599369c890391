"""`plan`: how long a rollout takes by last week's traffic, and how probably an equal canary passes each stage."""

import argparse

from assets.resources import Deployment
from assets.rollout import read_last_week
from jobs.rollout import DONE, REFUSED, AddCommand
from pipeline.rollout.plan import plan, traffic_of
from pipeline.rollout.policy import policy_of
from pipeline.rollout.router import Unrouted


def add_to(add: AddCommand) -> None:
    add("plan", help="days of each stage, by last week's traffic").set_defaults(run=_plan)


def _plan(settings: Deployment, asked: argparse.Namespace) -> int:
    rollout = settings.recipe().rollout
    if rollout.traffic.kind == "none":
        print(f"{Unrouted().reason}. There is no stage to look at.")
        return REFUSED
    week = read_last_week(settings)
    traffic, rated = traffic_of(week.users, week.days), week.by_feedback
    stages = plan(policy_of(rollout, gradable=traffic.graded_share > 0 and not rated, rated=rated), traffic)
    requests = traffic.requests_per_day * week.days
    print(f"{requests:,.0f} requests of {traffic.users:,.0f} users in {week.days:.1f} days, as admitted;")
    print(f"{traffic.graded_share:.0%} graded, of them {traffic.quality:.1%} right, ICC {traffic.icc:.2f}\n")
    print("weight  graded answers      days  an equal canary passes")
    for stage in stages:
        passes = "not judged" if stage.power is None else f"{stage.power:.0%}"
        print(f"{stage.weight:>5}%  {stage.graded:>14,}  {stage.days:>8,.1f}  {passes}")
    print(f"in all {sum(stage.days for stage in stages):,.1f} days")
    return DONE
