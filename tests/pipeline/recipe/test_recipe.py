import sys
from pathlib import Path
from subprocess import check_output
from typing import Annotated

import pytest
from pydantic import ValidationError

from pipeline.recipe import Kubernetes, Recipe, Training, data_root_problem, load, split_overrides
from pipeline.recipe.section import EACH, Observer, Operational, Section, fields, joined, settings

ROOT = Path(__file__).parents[3]
EMBEDDED = ROOT / "jobs" / "recipes" / "embedded.yaml"


SECRET = "sk-canary-0123456789"


@pytest.mark.parametrize(
    "override",
    [
        f"training.api_key={SECRET}",
        f"rewards.jugde={{api_key: {SECRET}}}",
        f"training.seed={SECRET}",
        f"traces.source.kind={SECRET}",
        f"training.seed.x={SECRET}",
        f"evaluation.suites.7={SECRET}",
        f"training.seed=[{SECRET}",
        f"base_model.uri=[{SECRET}]",
        f"trainning={{password: {SECRET}, url: 'https://ann:{SECRET}@host/'}}",
        f"{SECRET}",
    ],
)
def test_no_message_shows_a_secret(override: str) -> None:
    with pytest.raises(ValueError) as raised:
        load(EMBEDDED, [override])
    assert SECRET not in str(raised.value)


def test_overrides_reach_their_field() -> None:
    recipe = load(EMBEDDED, ["training.grpo.learning_rate=1e-5", "selection.method=dpo", "rollout.weights=[10, 100]"])
    assert recipe.training.grpo.learning_rate == 1e-5
    assert recipe.selection.method == "dpo"
    assert recipe.rollout.weights == (10, 100)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("training.grpo.stepz=3", r"training\.grpo\.stepz: there is no such field"),
        ("selection.method=gpro", r"selection\.method: Input should be 'auto', .*got 'gpro'"),
        ("traces.source.kind=otell", r"traces\.source: Input tag 'otell' .*'otel'"),
        ("traces.source={uri: x}", r"traces\.source: Unable to extract tag"),
        ("traces.source={kind: langfuse_export, urii: /exports}", r"traces\.source\.urii: there is no such field"),
        ("training.grpo.num_minibatches=7", r"training\.grpo: 16 prompts x 8 completions do not split"),
        ("training.grpo.steps=many", r"training\.grpo\.steps: .*valid integer.*got 'many'"),
        ("base_model.name=../../evil", r"base_model\.name: .*pattern.*got '\.\./\.\./evil'"),
        ("training.grace_s=.inf", r"training\.grace_s: Input should be a finite number \(got 'inf"),
        ("rollout.dwell_s=[1, .nan, 3]", r"rollout\.dwell_s\.1: Input should be a finite"),
        ("compute.nodes=100000", r"compute\.nodes: .*less than or equal to 1000"),
        ("evaluation.suites.0.items=x", r"evaluation\.suites\.0\.items: .*integer"),
        ("evaluation.suites.9.items=3", "to no element of a list"),
        ("name.sub=1", "leads through a value"),
        ("nonsense", "KEY=VALUE"),
        ("training.seed=[", "the value is not YAML"),
    ],
)
def test_a_wrong_recipe_names_the_field(override: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load(EMBEDDED, [override])


def test_every_mistake_has_one_line(tmp_path: Path) -> None:
    text = EMBEDDED.read_text().replace("steps: 32", "stepz: 32").replace("name: arithmetic", "nam: arithmetic")
    (tmp_path / "recipe.yaml").write_text(text.replace("method: auto", "method: best"))
    with pytest.raises(ValueError) as refused:
        load(tmp_path / "recipe.yaml", ["training.seed=x"])
    head, *lines = str(refused.value).splitlines()
    assert str(tmp_path / "recipe.yaml") in head
    paths = {line.split(":")[0].strip() for line in lines}
    assert paths == {
        "base_model.nam", "base_model.name", "selection.method", "training.grpo.stepz", "training.seed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("", []),
        (" training.seed=3  selection.method=dpo ", ["training.seed=3", "selection.method=dpo"]),
        ("base_model.uri='/models/my model'", ["base_model.uri=/models/my model"]),
        ("'traces.source={kind: otel, uri: /a}'", ["traces.source={kind: otel, uri: /a}"]),
    ],
)
def test_overrides_are_words_of_a_shell(text: str, overrides: list[str]) -> None:
    assert split_overrides(text) == overrides
    with pytest.raises(ValueError, match=r"No closing quotation\. Write a value with spaces like"):
        split_overrides(f"{text} name='x")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a: [", "is not YAML"),
        (b"a: 2024-99-99", "is not YAML"),
        (b"- a", "not a mapping"),
        (b"", "not a mapping"),
        (b"\x80\xff\x00", r"recipe\.yaml is not YAML: .*utf-8"),
    ],
)
def test_a_file_that_is_no_recipe_says_so(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        load(file)
    with pytest.raises(ValueError, match=rf"No recipe at {tmp_path}/nowhere\.yaml"):
        load(tmp_path / "nowhere.yaml")


def test_a_persons_folder_is_no_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure would delete there, and a sweep would tidy."""
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for place, what in (("project", "a project"), ("link", "a project"), ("home", "a home"), ("/", "a whole disk")):
        assert what in data_root_problem(str(tmp_path / place))
    assert data_root_problem(str(tmp_path / "project" / "data")) == ""
    assert "in full" in data_root_problem("~/data")
    monkeypatch.chdir(tmp_path / "project")
    with pytest.raises(ValueError, match=rf"data_root: {tmp_path}/project is a project .*Name a folder of its own"):
        load(EMBEDDED, ["data_root=."])
    assert load(EMBEDDED).data_root == "data", "below a project is where it is meant to be"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", "a.b"),
        ("namespace", "a\n"),
        ("claim", "Checkpoints"),
        ("queue", "a" * 64),
        ("image", "trainer @sha256:0"),
        ("env", {"MAX TOKENS": "1"}),
        ("max_restarts", 2**31),
        ("start_timeout_s", float("inf")),
    ],
)
def test_what_the_api_server_would_refuse(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=rf"1 validation error for Kubernetes\n{field}"):
        Kubernetes.model_validate({"image": "trainer"} | {field: value})


def test_names_that_the_api_server_takes() -> None:
    given = {"claim": "fsx.a-1", "queue": "team.gpus", "namespace": "0a", "env": {"a.b-C_1": "", "_X": "1"}}
    assert Kubernetes.model_validate({"image": "localhost:5000/t:1"} | given).claim == "fsx.a-1"


def test_the_digest_is_about_results_not_places() -> None:
    digest = load(EMBEDDED).digest()
    assert load(EMBEDDED, ["data_root=/elsewhere", "rollout.min_canary_requests=7"]).digest() == digest
    assert load(EMBEDDED, ["training.seed=99"]).digest() != digest


def test_a_reward_model_enters_the_digest_where_it_is_asked() -> None:
    digest = load(EMBEDDED).digest()
    assert load(EMBEDDED, ["rewards.reward_model=null"]).digest() == digest
    asked = load(EMBEDDED, ["rewards.reward_model={}"])
    assert asked.digest() != digest
    assert load(EMBEDDED, ["rewards.reward_model={timeout_s: 9}"]).digest() == asked.digest()
    assert load(EMBEDDED, ["rewards.reward_model={epochs: 9}"]).digest() != asked.digest()
    weights = ["rewards.judged.judge=1"]
    assert load(EMBEDDED, [*weights, "rewards.judged.reward_model=0"]).digest() == load(EMBEDDED, weights).digest()
    assert load(EMBEDDED, [*weights, "rewards.judged.reward_model=1"]).digest() != load(EMBEDDED, weights).digest()


@pytest.mark.slow
def test_the_digest_is_the_same_in_every_process() -> None:
    override = "traces.regions_allowed=[eu,uk,kr,us]"
    code = f"from pipeline.recipe import load; print(load({str(EMBEDDED)!r}, [{override!r}]).digest())"
    command = [sys.executable, "-c", code]
    assert len({check_output(command, env={"PYTHONHASHSEED": seed}, cwd=ROOT) for seed in ("1", "2")}) == 1


def test_the_gate_asks_its_own_judge_where_it_has_one() -> None:
    labels = "rewards.judge={model: labels, digest: l}"
    judged = "evaluation.suites=[{kind: items, preset: arithmetic}, {kind: judged, name: better, over: arithmetic}]"
    own = "evaluation.judge={model: gate, digest: g}"
    named = [load(EMBEDDED, list(each)).gate_judge for each in ([labels, judged, own], [labels, judged], [labels, own])]
    assert [judge and judge.model for judge in named] == ["gate", "labels", None]
    assert load(EMBEDDED, [labels, own]).digest() != load(EMBEDDED, [labels]).digest()


class Inner(Section):
    workers: Annotated[int, Operational] = 1
    rate: float = 0.5


class Other(Section):
    place: Annotated[str, Operational] = "here"
    rate: float = 0.5


class Listed(Section):
    each: tuple[Inner | Other, ...] = ()


class Outer(Section):
    inner: Inner = Inner()
    maybe: Inner | Other | None = None
    watch: Annotated[Inner, Observer] = Inner()
    seed: int = 1


def test_marked_fields_are_named_where_they_stand() -> None:
    assert fields(Outer, Operational) == {
        "inner": {"workers": True},
        "maybe": {"workers": True, "place": True},
        "watch": {"workers": True},
    }
    assert fields(Outer, Operational, Observer)["watch"] is True
    assert settings(Outer(maybe=Other()), Operational, Observer) == {
        "inner": {"rate": 0.5},
        "maybe": {"rate": 0.5},
        "seed": 1,
    }


def test_joined_takes_what_decides_from_the_first() -> None:
    first, now = Outer(seed=3, inner=Inner(workers=1, rate=0.1)), Outer(seed=4, inner=Inner(workers=9, rate=0.9))
    assert joined(first, now) == Outer(seed=3, inner=Inner(workers=9, rate=0.1))
    assert joined(Outer(maybe=Other(place="a")), Outer()).maybe == Other(place="a"), "a section that is not there now"


def test_joined_takes_marked_fields_of_a_list_from_the_second() -> None:
    first, now = (Listed(each=(Inner(workers=n, rate=n / 10), Other(place=str(n)))) for n in (1, 2))
    assert joined(first, now) == Listed(each=(Inner(workers=2, rate=0.1), Other(place="2")))
    assert joined(first, Listed(each=(Inner(workers=7),))) == first, "another list: nothing to take from it"
    assert settings(first, Operational)["each"] == [{"rate": 0.1}, {"rate": 0.5}]


def test_recipe_fields_without_effect_are_meant_to_be() -> None:
    """A field that decides the result and carries a mark would let two iterations share an id: read this list."""
    whole = (
        "name", "data_root", "base_model", "rollout", "compute", "accept_demo_suite", "answers_in_mlflow",
        "automation", "key_prefix", "retention",
    )  # fmt: skip
    serving = dict.fromkeys(("batch_size", "in_flight", "memory_share", "start_timeout_s", "timeout_s"), True)
    assert fields(Recipe, Operational) == {
        **dict.fromkeys(whole, True),
        "traces": {
            **dict.fromkeys(("attribution", "min_admitted_share", "lake", "governed_days"), True),
            "source": {"code": True},  # its digest decides
        },
        "rewards": {
            "verifier": {"workers": True},
            "judge": {"concurrency": True},
            "custom": {"workers": True, "code": True},
            "reward_model": {"timeout_s": True},
            "review_rows": True,
        },
        "samples": {"serving": serving},
        "evaluation": {
            "suites": {EACH: {"path": True, "custom": {"code": True}}},
            "serving": serving,
            "judge": {"concurrency": True},
        },
        "training": {"checkpoints": True, "timeout_s": True, "grace_s": True},
    }
    assert fields(Training, Observer) == {
        **dict.fromkeys(("validation", "sentinel"), True),
        **{name: {"kl_stop": True} for name in ("grpo", "dpo", "kto", "sft")},
    }
