"""What a launch says of a gang, over sequences that were recorded from real controllers."""

import itertools
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
import yaml

from k8s.attempts import GangAttempts
from k8s.classify import Cause
from k8s.follow import NO_PROGRESS_S, Hooks
from k8s.gang import Gang, example
from k8s.launch import Task, run
from pipeline.core.storage import Store
from pipeline.recipe import Compute, Kubernetes, Training
from pipeline.training.checkpoints.claims import Claim, Superseded, claim
from pipeline.training.launch import TrainingRefused

from .fake_api import parsed
from .manifests import MANIFESTS
from .replay import UNFOLLOWED, Replay

SEQUENCES = Path(__file__).parents[3] / "shared" / "data" / "k8s-sequences"
SCENARIOS = sorted(path.stem for path in SEQUENCES.glob("*.json") if not path.stem.startswith("indexed-job"))
"""Those of the backends that there are."""
GANGS = {"kueue-never-fits": ("gang-a", "gang-b"), "kueue-queued-then-admitted": ("gang-a", "gang-b")}
IMAGE = "registry.example.com/trainer@sha256:" + "0" * 64
MENDED = {
    "jobset-exit65": ("TrainingRefused", ["refused"], 0),
    "volcano-exit65": ("TrainingRefused", ["refused"], 0),
    "kueue-limit-range": ("TrainingRefused", ["forbidden"], 0),
}
"""How a launch ends where the recorded one was wrong."""


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as the recorded launcher did: it saw each state."""
    monkeypatch.setattr(Kubernetes, "poll_s", 0.5)


class Launched(NamedTuple):
    """What came of a launch, how its attempts ended and how often they were started again, what people were told."""

    ending: str
    attempts: list[str]
    restarts: int
    lines: list[str]

    @property
    def causes(self) -> list[str]:
        said = (re.match(r"[\w-]+ ([a-z ]+)(?:: | \()", line) for line in self.lines)
        return [match[1].replace(" ", "_") for match in said if match]


def launched(replay: Replay, root: Path) -> Launched:
    attempts, lines = GangAttempts(Store(root), "sequence"), list[str]()
    compute = Compute(
        kubernetes=Kubernetes(
            image=IMAGE, backend=replay.backend, start_timeout_s=replay.setting("start_timeout_s", 600)
        ),
        nodes=4 if "4-nodes" in replay.name else 2,
        processes=8,
    )
    training = Training(timeout_s=replay.setting("timeout_s", 3600))

    def gang(number: int) -> Gang:
        plan = replay.gang.replace("gang", "plan")
        named = {"name": f"{replay.gang}-{number}", "plan_digest": plan, "attempt": number}
        return example("sequence", str(root), compute, training).model_copy(update=named)

    task = Task(
        gang=gang,
        attempts=attempts,
        result=lambda: "result" if replay.has_result() else None,
        result_path=root / "result.json",
        left=set,
        refusal=TrainingRefused,
    )
    hooks = Hooks(log=lines.append, now=lambda: replay.now, sleep=replay.sleep)
    ending = "result"
    try:
        run(task, replay.client(), hooks)
    except (TrainingRefused, RuntimeError, KeyboardInterrupt) as error:
        ending = type(error).__name__
        lines.append(str(error).replace(":", "", 1))
    if ending == "KeyboardInterrupt" and replay.name == UNFOLLOWED:
        replay.sleep(60)
        return launched(replay, root)
    ends = attempts.all()
    return Launched(ending, [e.outcome for e in ends], sum(e.restarts for e in ends), lines)


def granted(backend: str) -> set[tuple[str, str, str]]:
    """Group, resource and verb, of the manifests' Roles for this backend."""
    files = [MANIFESTS / "bases" / "rbac" / "roles.yaml", MANIFESTS / "components" / backend / "role.yaml"]
    roles = [obj for file in files for obj in yaml.safe_load_all(file.read_text()) if obj["kind"] == "Role"]
    rules = [rule for role in roles for rule in role["rules"]]
    return {right for r in rules for right in itertools.product(r["apiGroups"], r["resources"], r["verbs"])}


def needed(replay: Replay) -> set[tuple[str, str, str]]:
    """The rights that the requests of a launch take."""
    rights = set[tuple[str, str, str]]()
    for method, path in replay.asked:
        resource, name, sub = parsed(path)
        verbs = {"GET": ("get" if name else "list",), "PATCH": ("create", "patch"), "DELETE": ("delete",)}[method]
        rights |= {(resource.group, "/".join(filter(None, (resource.plural, sub))), verb) for verb in verbs}
    return rights


def expected(replay: Replay) -> tuple[str, list[str], int]:
    recorded = replay.recorded
    attempts = [(outcome, restarts) for _, outcome, restarts, _ in recorded["attempts_on_record"]]
    ending = recorded["what_the_launcher_did"].partition(":")[0]
    ending = "KeyboardInterrupt" if ending.startswith("interrupted") else ending
    return MENDED.get(replay.name, (ending, [each[0] for each in attempts], sum(each[1] for each in attempts)))


def causes_of(text: str, gang: str) -> list[set[str]]:
    """What is to be told, one after the other; "queued or restarting" is either."""
    text = re.sub(r"\([^)]*\)|; never.*", "", text)
    if gang != "gang":
        text = next(part for part in text.split(";") if gang in part)
    phases = [set(re.findall(r"[a-z_]+", part)) & set(get_args(Cause)) for part in re.split(r",|:", text)]
    return [phase for phase in phases if phase]


def told_in_order(told: Iterable[str], phases: list[set[str]]) -> bool:
    rest = iter(told)
    return all(any(cause in phase for cause in rest) for phase in phases)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "gang"), [pytest.param(n, g, id=f"{n}:{g}") for n in SCENARIOS for g in GANGS.get(n, ("gang",))]
)
def test_a_launch_says_what_it_should(name: str, gang: str, tmp_path: Path, shared_data: Path) -> None:
    replay = Replay(shared_data / "k8s-sequences" / f"{name}.json", gang)
    came = launched(replay, tmp_path)
    assert (came.ending, came.attempts, came.restarts) == expected(replay)
    should = replay.recorded["what_the_launcher_should_say"]
    assert told_in_order(came.causes, causes_of(should, gang)), came.causes
    for words in ("LimitRange", "ResourceQuota"):
        assert words not in should or words in came.lines[-1]
    if "five minutes" in should:
        assert NO_PROGRESS_S <= replay.now < NO_PROGRESS_S + 30
    assert needed(replay) <= granted(replay.backend), "the shipped Role of its backend is enough"
    if "waits behind" in should and gang == "gang-b":
        assert any("it waits behind gang-a-1" in line for line in came.lines)


class Trainers(Replay):
    """A recording whose pods that train claim the training's folder as they begin."""

    def __init__(self, file: Path, root: Path) -> None:
        super().__init__(file)
        self.root, self.claims = root, dict[str, Claim]()
        self.writers, self.generations = list[str](), 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        heads = {
            pod["metadata"]["uid"]: pod["status"]["phase"] for pod in self.pods() if "-head-" in pod["metadata"]["name"]
        }
        running = [uid for uid, phase in heads.items() if phase == "Running"]
        self.claims |= {uid: claim(self.root, 1) for uid in running if uid not in self.claims}
        writers = [uid for uid in running if self._writes(uid)]
        assert len(writers) <= 1
        self.writers += writers
        self.generations = max(self.generations, len(running))

    def _writes(self, uid: str) -> bool:
        with suppress(Superseded):
            self.claims[uid].check()
            return True
        return False


@pytest.mark.shared
def test_of_two_generations_of_a_rayjob_one_writes(tmp_path: Path, shared_data: Path) -> None:
    replay = Trainers(shared_data / "k8s-sequences" / "rayjob-resumed-while-pods-end.json", tmp_path / "training")
    assert launched(replay, tmp_path).ending == "result"
    assert replay.generations == 2, "both run at once"
    first, second = dict.fromkeys(replay.writers)
    assert replay.writers == sorted(replay.writers, key=[first, second].index), "the first never writes again"
