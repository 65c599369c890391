"""The attempts at one training or evaluation: a record for each beside the plan, made before anything of it is in the
cluster. Their numbers fence one attempt from the next."""

from collections.abc import Callable, Sequence

from k8s.classify import Cause, Classification
from k8s.estimate import prices
from k8s.hours import Range
from pipeline.core import layout
from pipeline.core.storage import Record, Store
from pipeline.recipe import Compute
from pipeline.training.account import device_hours
from pipeline.training.checkpoints.claims import newest_claim
from pipeline.training.result import TrainingResult


class LaunchAttempt(Record):
    """One object in the cluster, from the launcher's side."""

    attempt: int
    name: str
    opened_at: float
    """Seconds since the epoch, as `closed_at`."""
    closed_at: float | None = None
    """None while it is not over."""
    outcome: str = ""
    why: str = ""
    restarts: int = 0
    """Of the gang inside this attempt."""


class Ledger(Record):
    """The account of all attempts at one training."""

    attempts: int
    restarts: int
    """Of gangs, inside the attempts."""
    preemptions: int
    """Interruptions that the trainer resumed from, whatever their cause."""
    lost_steps: int
    """Computed again."""
    device_hours: float
    """Paid for, over all nodes."""
    usd: Range
    """Of the devices, at the lower and the higher price of the capacity that was asked for."""
    measured: bool
    """False: the training left no account, and `device_hours` is the attempts' whole time."""


def ledger(attempts: Sequence[LaunchAttempt], result: TrainingResult | None, compute: Compute, devices: int) -> Ledger:
    """The account of these attempts; `result` is None for a training that did not end.

    `devices`: paid for (`k8s.estimate.paid_devices`), over all nodes.
    """
    goodput = result.goodput if result is not None and result.goodput.total_s > 0 else None
    if goodput is not None:
        held = device_hours(goodput, devices)
    else:
        ended = ((each.opened_at, each.closed_at) for each in attempts)
        held = devices * sum(max(0.0, end - start) for start, end in ended if end is not None) / 3600
    preemptions = result.preemptions if result is not None else ()
    return Ledger(
        attempts=len(attempts),
        restarts=sum(each.restarts for each in attempts),
        preemptions=len(preemptions),
        lost_steps=sum(each.lost_steps for each in preemptions),
        device_hours=held,
        usd=prices(compute).times(Range(low=held, high=held)),
        measured=goodput is not None,
    )


class AttemptEnding(Record):
    cause: Cause
    why: str


class AttemptObject(Record):
    """That was put into the cluster."""

    uid: str


def unfinished_iterations(store: Store) -> list[str]:
    """Ids of the iterations of which a training or an evaluation was begun in a cluster and is not over."""
    iterations = sorted(path.name for path in store.path(layout.ITERATIONS).glob("*") if path.is_dir())
    folders = (layout.ATTEMPTS, layout.EVAL_ATTEMPTS)
    return [id for id in iterations if any(GangAttempts(store, id, folder).unfinished() for folder in folders)]


class GangAttempts:
    def __init__(self, store: Store, iteration: str, folder: str = layout.ATTEMPTS) -> None:
        """`folder`: of their records, below the iteration's."""
        self._store, self._folder = store, layout.iteration(iteration, folder)

    def all(self) -> Sequence[LaunchAttempt]:
        folder = self._store.path(self._folder)
        names = sorted(path.name for path in folder.glob("attempt-*.json"))
        records = [self._store.read(f"{self._folder}/{name}", LaunchAttempt) for name in names]
        return [attempt for attempt in records if attempt is not None]

    def current(self, at: float, name: Callable[[int], str]) -> LaunchAttempt:
        """The newest attempt if it is not over, else a new one. Of two launchers that open one at once, one wins."""
        while True:
            newest = next(iter(reversed(self.all())), None)  # looked up once: a rival may open one at any moment
            if newest is not None and newest.closed_at is None:
                return newest
            number = newest.attempt + 1 if newest else 1
            attempt = LaunchAttempt(attempt=number, name=name(number), opened_at=at)
            if self._store.create(self._file("attempt", number), attempt):
                return attempt

    def unfinished(self) -> LaunchAttempt | None:
        """The newest attempt, if it is not over."""
        return next((each for each in self.all()[-1:] if each.closed_at is None), None)

    def open(self, number: int) -> bool:
        """Whether that attempt is the newest, and not over."""
        unfinished = self.unfinished()
        return unfinished is not None and unfinished.attempt == number

    def placed(self, number: int) -> bool:
        """Whether the object of that attempt was in the cluster once: by its record or, where a launcher was killed
        before it wrote one, by the trainer's claim. It is never put there again."""
        if self._store.read(self._file("object", number), AttemptObject) is not None:
            return True
        claim = newest_claim(self._store.path(self._folder).parent)
        return claim is not None and claim.attempt >= number

    def place(self, number: int, uid: str) -> None:
        """Write that the object is in the cluster."""
        self._store.create(self._file("object", number), AttemptObject(uid=uid))

    def ending(self, number: int) -> Classification | None:
        """What is settled about that attempt's end."""
        record = self._store.read(self._file("ending", number), AttemptEnding)
        return Classification(record.cause, record.why) if record else None

    def end(self, number: int, verdict: Classification) -> Classification:
        """Settle how that attempt ended, before anything of it is cleared away. Of two launchers the first one's word
        stands: to the other, the clearing is a deletion."""
        self._store.create(self._file("ending", number), AttemptEnding(cause=verdict.cause, why=verdict.why))
        return self.ending(number) or verdict

    def close(self, attempt: LaunchAttempt) -> bool:
        """Write how it ended. False when it was closed before."""
        recorded = self._store.read(self._file("attempt", attempt.attempt), LaunchAttempt)
        if recorded is None or recorded.closed_at is not None:
            return False
        self._store.write(self._file("attempt", attempt.attempt), attempt)
        return True

    def settle(self, at: float) -> None:
        """Close what is open although the training is done: a launcher ended between the two."""
        for attempt in self.all():
            if attempt.closed_at is None:
                over = {"closed_at": at, "outcome": "succeeded", "why": "its result is there"}
                self.close(attempt.model_copy(update=over))

    def _file(self, what: str, number: int) -> str:
        return f"{self._folder}/{what}-{number:03}.json"
