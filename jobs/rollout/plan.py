"""`plan` and `aa`: how long a rollout will take, and whether its rules fit the users, by last week's traffic."""

import argparse
from collections.abc import Sequence

from assets.resources import Deployment
from assets.rollout import read_last_week
from assets.traffic import traffic_split
from jobs.rollout import DONE, REFUSED, AddCommand
from pipeline.rollout.aa import SALTS, ServedRequest, aa
from pipeline.rollout.last_week import LOOKS, WEEK_S, busiest_per_s, days_of, rated_alone, units_of
from pipeline.rollout.plan import plan, traffic_of
from pipeline.rollout.policy import RolloutPolicy, policy_of
from pipeline.rollout.reconcile import slot_of
from pipeline.rollout.router import Unrouted


def add_to(add: AddCommand) -> None:
    add("plan", help="days of each stage, by last week's traffic").set_defaults(run=_plan)
    command = add("aa", help="how often the rules alarm on two equal arms of last week's users (takes minutes)")
    command.add_argument("--salts", type=int, default=SALTS, help="splits that are tried (default: %(default)s)")
    command.add_argument("--looks", type=int, default=LOOKS, help="looks in a week (default: %(default)s)")
    command.set_defaults(run=_aa)


def _policy(settings: Deployment, requests: Sequence[ServedRequest]) -> RolloutPolicy:
    graded, rated = any(each.grade != "none" for each in requests), rated_alone(requests)
    return policy_of(settings.recipe().rollout, gradable=graded and not rated, rated=rated)


def _unrouted(settings: Deployment) -> bool:
    """Whether there is no router, and so no stage to plan or to try; says so."""
    if settings.recipe().rollout.traffic.kind != "none":
        return False
    print(f"{Unrouted().reason}. There is no stage to look at.")
    return True


def _plan(settings: Deployment, asked: argparse.Namespace) -> int:
    if _unrouted(settings):
        return REFUSED
    requests, rollout = read_last_week(settings), settings.recipe().rollout
    traffic = traffic_of(units_of(requests), days_of(requests), busiest_per_s(requests))
    print(f"{len(requests):,} requests of {traffic.users:,.0f} users in {days_of(requests):.1f} days, as admitted;")
    print(f"{traffic.graded_share:.0%} graded, of them {traffic.quality:.1%} right, ICC {traffic.icc:.2f}")
    print(f"{traffic.busiest_per_s:,.2f} requests a second in the busiest hour, without those that were not admitted")
    stages = plan(_policy(settings, requests), traffic, rollout.max_stage_s, _champion_servers(settings))
    print("\n".join(["", *stages.lines()]))
    return DONE


def _champion_servers(settings: Deployment) -> int:
    """Servers that answer for the champion now; 0 where the router does not say."""
    try:
        return slot_of(traffic_split(settings), settings.champion().model).servers
    except (OSError, ValueError):  # a plan is made before anything is installed
        return 0


def _aa(settings: Deployment, asked: argparse.Namespace) -> int:
    if _unrouted(settings):
        return REFUSED
    requests = read_last_week(settings)
    check = aa(requests, _policy(settings, requests), WEEK_S / asked.looks, asked.salts)
    print("\n".join(check.lines()))
    return DONE if check.passed else REFUSED
