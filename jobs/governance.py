"""Governance at a terminal: `pt governance forget USER [--yes] | verify | ...`.

Exit codes: 0 done, 1 something is wrong with what was found (it says what), 2 it could not be done (it says why).
`forget` shows what it will remove, place by place, and asks; `--yes` answers for scripts. `forget -` reads the id
from standard input, before the answer: it is then neither in the shell's history nor in the process list. The job
`forget` takes the user by an environment variable, `user_id: {env: FORGET_USER}`: Dagster keeps the configuration of
every run.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import dagster as dg

from assets.records import begun_iterations
from assets.resources import Deployment, deployment
from assets.rollout import rollout_ports
from evals import erasure as evaluations
from jobs.dagster_storage import drop_runs
from jobs.preference_tuning import executor
from jobs.workers import WORKERS
from pipeline.core import audit, layout
from pipeline.core.storage import digest_json
from pipeline.governance import erasure, iterations
from pipeline.governance.erasure import mirrored, reapply, tables
from pipeline.governance.erasure.records import Affected, Counts, ErasureProof, Person, proofs
from pipeline.registry import versions
from pipeline.registry.tracking import has_database
from pipeline.rewards import findings, reviews
from pipeline.rollout.controller import roll_back
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase, blocks
from pipeline.traces.erased import ErasedUsers, erased_users, exclusive_lock, shared_lock
from pipeline.traces.lake import SweepResult, open_lake
from pipeline.traces.retention import GRACE_S, ended, retain, retired
from pipeline.traces.sources.protocol import Address, address_of

Log = Callable[[str], None]
_log: Log = partial(print, flush=True)
SHOWN = 4
"""Files or days of a place."""


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    settings = deployment()
    try:
        return asked.run(settings, asked)
    except AssertionError:  # a bug of ours keeps its traceback
        raise
    except Exception as error:  # boundary: a person at a terminal; MLflow, PyIceberg and S3 have errors of their own
        text = str(error).partition("\n[SQL")[0]  # a statement has the texts of its rows
        print(f"{asked.command}: {text} ({type(error).__name__})", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    arg_parser = argparse.ArgumentParser(prog="pt governance", description=__doc__)
    commands = arg_parser.add_subparsers(dest="command", required=True)

    def add(name: str, run: Callable[[Deployment, argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help)
        command.set_defaults(run=run)
        return command

    user = add("forget", _forget, "remove a user from every table and file, and block the models that saw the data")
    user.add_argument("user", help="the id under which the source has the user; - reads it from standard input")
    user.add_argument("--yes", action="store_true", help="do not ask: for scripts")
    log = add("verify", _verify, "check the audit log, line by line, and every proof against it")
    log.add_argument("--json", action="store_true", help="the result as one JSON object")
    log.add_argument("--against", metavar="HEAD", default="", help="a head that you noted: it has to be in the log")
    add("blocks", _blocks, "list the models that may not be promoted")
    add("forgotten", _forgotten, "list who is forgotten, by their marks, for `reapply`")
    add("overdue", _overdue, "list what the job lake_upkeep would delete of old iterations; deletes nothing")
    again = add("reapply", _reapply, "after a restore: forget again whom the backup has again")
    again.add_argument("file", help="what `forgotten` printed")
    return arg_parser


def forget_user(settings: Deployment, user_id: str, log: Log) -> ErasureProof:
    """Forget a user of this deployment, and take the traffic off a canary that is blocked by that."""
    store, name, uri = settings.store(), settings.recipe().base_model.name, settings.registry_uri()
    now = datetime.now(UTC)
    person, keepers, address = Person.named(user_id), KEEPERS, _address(settings)
    proof = erasure.forget(settings.stage(log), person, registry_uri=uri, now=now, keepers=keepers, address=address)
    if read_state(store, name).phase is Phase.ROLLING_BACK:
        # The rollout's own job would measure first, on rows that may be gone; a rollback needs no measurement.
        roll_back(rollout_ports(settings), now.timestamp())
        log(f"rollout of {name}: {read_state(store, name).phase}")
    if has_database(uri):
        versions.project(settings.mlflow(), read_state(store, name))  # also after a killed rollback
    return proof


KEEPERS: Sequence[erasure.Keeper] = (evaluations.places,)


def _address(settings: Deployment) -> Address:
    """Of the source; without its connection where the environment does not say it: a user is forgotten without
    it."""
    try:
        return address_of(settings.recipe().traces, settings.source_uri())
    except ValueError:
        return address_of(settings.recipe().traces, "")


def drop_overdue(settings: Deployment, log: Log) -> list[str]:
    """Retention, and what was built or found out of the data that it drops, whichever run dropped it; the days.

    Nobody labels or is forgotten meanwhile.
    """
    store = settings.store()
    with exclusive_lock(store):
        try:
            return retain(settings.stage(log), datetime.now(UTC))
        finally:  # by what is gone, not by what this call did: one before it may have been killed here
            days = retired(store)
            removed = [*tables.clear(store, ended(store, days)), *reviews.drop_days(store, days)]
            findings.drop_days(store, days)
            for name in removed:
                log(f"retention: {name} is gone")


def keep_up(settings: Deployment, log: Log) -> SweepResult:
    """The table's upkeep; no user is forgotten meanwhile."""
    store, days = settings.store(), settings.recipe().traces.lake.keep_snapshots_days
    with shared_lock(store), open_lake(settings.lake()) as lake:
        mirrored.tidy(store, log)
        expired = lake.expire(datetime.now(UTC) - timedelta(days=days))
        log(f"upkeep: {len(expired)} snapshots older than {days} days are expired")
        return lake.sweep(GRACE_S)


def overdue_iterations(settings: Deployment) -> list[iterations.Overdue]:
    store = settings.store()
    return list(iterations.overdue(store, begun_iterations(store), settings.recipe().retention.iterations))


def preview_lines(preview: erasure.Preview) -> Iterator[str]:
    """What an erasure would do now, for a person."""
    if not preview.places:
        yield "Nothing that we wrote has this user as owner. The user goes on the list: rows that come are rejected."
    else:
        yield "These rows go, of this user alone; no other row is changed:"
        yield from place_lines(preview.places)
    for title, names in (
        ("Datasets that end (materialise the traces again)", preview.affected.datasets),
        ("Iterations that learned from them, blocked", preview.affected.iterations),
        ("Model versions, blocked from promotion", preview.affected.versions),
    ):
        if names:
            yield f"{title}: {', '.join(names)}"


def place_lines(places: Counts) -> Iterator[str]:
    """A line for each place, with its files or days where they are few."""
    for place, counts in places.items():
        names = [*list(counts)[:SHOWN], *(["..."] if len(counts) > SHOWN else [])]
        yield f"  {place}: {sum(counts.values()):,} in {len(counts)} ({', '.join(names)})"


def report_lines(proof: ErasureProof, path: str) -> Iterator[str]:
    """The proof for a person."""
    artifacts = proof.affected
    if not proof.places and artifacts == Affected():
        yield "Nothing was found of this user. The user is on the list: rows that come are rejected."
    else:
        yield f"{sum(proof.rows.values()):,} rows of {len(proof.rows)} days are erased. In all:"
        yield from place_lines(proof.places)
    for title, names in (
        ("Datasets that held the user (materialise the traces again)", artifacts.datasets),
        ("Iterations that learned from them", artifacts.iterations),
        ("Checkpoints", artifacts.checkpoints),
        ("Model versions, blocked from promotion", artifacts.versions),
        ("Trained on top of these, not blocked", artifacts.inherited),
        ("KEPT OUTSIDE, and its owner's to delete", proof.outside),
        ("STILL NAME THE USER AS OWNER, and are yours: nothing in them was edited", proof.remains),
    ):
        if names:
            yield f"{title}:"
            yield from (f"  {name}" for name in names)
    if proof.champion:
        yield f"Attention: {proof.champion}."
    yield f"Proof {proof.id}: {path}"


def _forget(settings: Deployment, asked: argparse.Namespace) -> int:
    user = sys.stdin.readline().rstrip("\r\n") if asked.user == "-" else asked.user
    if not asked.yes and not _confirmed(settings, user):
        print("Nothing was changed.", file=sys.stderr)
        return 2
    proof = forget_user(settings, user, _log)
    print("\n".join(report_lines(proof, str(settings.store().path(layout.proof(proof.id))))))
    return 1 if proof.remains else 0


def _confirmed(settings: Deployment, user: str) -> bool:
    """Show what would go, and ask. Raises ValueError where there is no answer."""
    stage, person = settings.stage(lambda line: None), Person.named(user)
    preview = erasure.preview(stage, person, settings.registry_uri(), KEEPERS)
    print("\n".join(preview_lines(preview)), file=sys.stderr)
    print("Forget this user? This cannot be undone. [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise ValueError("There is no answer on standard input, and nothing was changed. Answer, or give --yes")
    return answer.strip().lower() in ("y", "yes")


def _blocks(settings: Deployment, asked: argparse.Namespace) -> int:
    lines: list[str] = []
    for each in blocks(settings.store()):
        lines += [f"erasure {each.proof}: iterations {', '.join(each.iterations)}", *(f"  {d}" for d in each.digests)]
    print("\n".join(lines or ["No model is blocked."]))
    return 0


def _verify(settings: Deployment, asked: argparse.Namespace) -> int:
    """The log against itself and a head that was noted elsewhere, and the proofs against it. Writes nothing: a
    read-only copy is verified like any other."""
    store = settings.store()
    result = audit.verify(store, asked.against)
    fields = {"entries": result.entries, "head": result.head, "line": result.line, "flaw": result.flaw}
    forged: list[str] = []
    lost: list[str] = []
    if result.flaw:
        where = f"line {result.line}: " if result.line else ""
        lines = [f"{store.path(audit.LOG)}: {where}{result.flaw}."]
        lines.append("Whatever the log says from there on is not to be relied on.")
    else:
        logged = {e.subject: str(e.detail.get("proof")) for e in audit.entries(store) if e.kind == "erasure"}
        held = {proof.id: digest_json(proof) for proof in proofs(store)}
        forged = sorted(id for id, digest in held.items() if logged.get(id) != digest)
        lost = sorted(logged.keys() - held.keys())
        lines = [f"{store.path(layout.proof(id))} is not the proof that the log speaks of." for id in forged]
        lines += [f"{store.path(layout.proof(id))} is gone. Restore it from a backup." for id in lost]
        lines.append(f"{result.entries:,} entries, every one as it was written. Note the head elsewhere: {result.head}")
    intact = not (result.flaw or forged or lost)
    fields |= {"intact": intact, "forged": forged, "lost": lost}
    print(json.dumps(fields, indent=2) if asked.json else "\n".join(lines))
    return 0 if intact else 1


def _forgotten(settings: Deployment, asked: argparse.Namespace) -> int:
    print(erased_users(settings.store()).model_dump_json(indent=2))
    return 0


def _overdue(settings: Deployment, asked: argparse.Namespace) -> int:
    for each in overdue_iterations(settings):
        print(f"{each.subject}: {each.bytes:,} bytes in {len(each.paths)} places")
    return 0


def _reapply(settings: Deployment, asked: argparse.Namespace) -> int:
    path = Path(asked.file)
    try:
        users = ErasedUsers.model_validate_json(path.read_text(encoding="utf-8")).users
    except ValueError as error:
        raise ValueError(f"{path} is not what `pt governance forgotten` prints ({error}).") from error
    log: Log = partial(print, file=sys.stderr)
    here = reapply(settings.stage(log), users, datetime.now(UTC), lambda user: forget_user(settings, user, log))
    print(f"{len(users)} users are on the list; {here} of them had rows here, which are erased again.")
    return 0


@dg.op(
    config_schema={
        "user_id": dg.Field(dg.StringSource, description="The source's id of the user, or better {env: A_VARIABLE}."),
    }
)
def forget_one(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Erase a user's rows, block what learned from them, and leave a proof."""
    proof = forget_user(deployment, context.op_config["user_id"], context.log.info)
    context.log.info("\n".join(report_lines(proof, str(deployment.store().path(layout.proof(proof.id))))))
    if proof.remains:
        text = f"{len(proof.remains)} files of yours still name the user as owner: see the log."
        raise dg.Failure(text, allow_retries=False)


@dg.job(executor_def=executor)
def forget():
    """Removes a user from every live table and from disk, and blocks the models that saw the data."""
    forget_one()


@dg.op
def keep_the_lake(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Drop what is kept no longer of days, iterations and Dagster's runs, then tidy the table."""
    store, log = deployment.store(), context.log.info
    log(f"Dropped {len(drop_overdue(deployment, log))} governed days.")
    with exclusive_lock(store):
        iterations.sweep(store, overdue_iterations(deployment), deployment.mlflow(), datetime.now(UTC), log)
    swept = keep_up(deployment, log)
    log(f"Swept {swept.files:,} files of {swept.bytes:,} bytes.")
    log(f"Deleted {drop_runs(context.instance, WORKERS):,} old runs of Dagster.")


@dg.job(executor_def=executor)
def lake_upkeep():
    """Retention, then snapshot expiry and the sweep of unreachable files."""
    keep_the_lake()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
