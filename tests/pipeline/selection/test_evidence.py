"""What is measured of a labelled set, on sets small enough to count by hand, and the noise of their pairs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.estimate import UNKNOWN, Estimate, share
from pipeline.recipe import Selection
from pipeline.selection.evidence import Evidence, NoiseSource, label_noise, measure
from pipeline.selection.pairing import LabelledRow, by_prompt, pairs

SETTINGS = Selection()


def row(prompt: str, trace: str, **fields: object) -> LabelledRow:
    """A verified right answer, unless it is said otherwise."""
    usual: dict[str, object] = {
        "trace_id": f"{prompt}-{trace}", "observation_id": "", "user_id": trace, "tenant_id": None, "consent": True,
        "prompt": prompt, "completion": f"text {trace}", "reference": "1", "verifier": "exact", "final_reward": 1.0,
        "profile": "verified", "correct": 1.0, "feedback": None, "judge": None,
    }  # fmt: skip
    return LabelledRow(**{**usual, **fields})  # type: ignore[arg-type]


def wrong(prompt: str, trace: str, **fields: object) -> LabelledRow:
    return row(prompt, trace, **{"final_reward": 0.0, "correct": 0.0, **fields})


def rated(prompt: str, trace: str, feedback: float) -> LabelledRow:
    return row(
        prompt, trace, reference=None, verifier=None, correct=None, profile="rated", feedback=feedback,
        final_reward=feedback,
    )  # fmt: skip


def evidence(rows: list[LabelledRow], human: Estimate = UNKNOWN) -> Evidence:
    return measure(rows, pairs(by_prompt(rows), SETTINGS), human, SETTINGS)


def test_the_counts_and_shares_of_a_small_set() -> None:
    found = evidence(
        [
            *(row("solved", str(i)) for i in range(3)),
            row("mixed", "a"), wrong("mixed", "b"), wrong("mixed", "c"),
            *(wrong("hopeless", str(i), completion="same") for i in range(3)),
            wrong("once", "a"),
            row("open", "a", reference=None, correct=None, final_reward=None),
            row("torn", "a"), row("torn", "b", reference="2"),
        ]
    )  # fmt: skip
    assert (found.traces, found.labelled, found.prompts, found.groups) == (13, 12, 6, 4)
    assert found.coverage == pytest.approx(12 / 13)
    assert found.verifiable_share == share(4, 6)
    assert found.frontier_prompts == 2
    assert [tuple(each) for each in found.attempts] == [
        (0, 1, 1, True), (0, 3, 1, False), (1, 3, 1, True), (3, 3, 1, False),
    ]  # fmt: skip
    assert found.pairs == 1


def test_what_users_say_is_audited_by_the_verifier() -> None:
    thumbs = {
        "agrees": [row("1", "a", feedback=0.75), wrong("1", "b", feedback=0.25)],
        "reversed": [row("2", "a", feedback=0.25), wrong("2", "b", feedback=0.75)],
        "no difference": [row("3", "a", feedback=0.75), row("3", "b", feedback=0.25)],
        "no pair": [row("4", "a", feedback=0.75), wrong("4", "b", feedback=0.75)],
    }
    open_ended = [rated("5", "a", 0.75), rated("5", "b", 0.25)]
    found = evidence([*(r for group in thumbs.values() for r in group), *open_ended])
    source = found.noise_sources["feedback"]
    assert source.noise == share(0 + 1 + 0.5, 3)
    assert source.share == pytest.approx(1 / 4), "of four pairs, three are verified"
    assert found.noise_sources["verifier"].noise.value == 0.0
    assert found.label_noise.value == pytest.approx(0.5 / 4)


def test_labels_that_nobody_can_contradict_have_unknown_noise() -> None:
    found = evidence([rated(str(p), name, value) for p in range(50) for name, value in (("a", 0.75), ("b", 0.25))])
    assert found.pairs == 50
    assert found.label_noise == UNKNOWN


def test_judge_noise_is_known_from_the_verifier() -> None:
    def judged(prompt: str) -> list[LabelledRow]:
        bare = {"reference": None, "verifier": None, "correct": None, "profile": "judged"}
        return [row(prompt, "a", judge=1.0, **bare), wrong(prompt, "b", **{**bare, "judge": 0.0})]

    checked = [r for p in range(100) for r in (row(f"c{p}", "a", judge=1.0), wrong(f"c{p}", "b", judge=0.0))]
    rows = [*checked, *(r for p in range(100) for r in judged(f"j{p}"))]
    assert evidence(rows).noise_sources["judge"].noise == share(0, 100)
    unaudited = [r for p in range(100) for r in judged(f"j{p}")]
    assert evidence(unaudited).label_noise.value is None


def test_noise_of_imports_is_measured_where_it_can_be() -> None:
    pairs = [(row(f"g{p}", "a"), wrong(f"g{p}", "b")) for p in range(100)]
    rows = [r._replace(profile="imported", origin="imports/x (MIT)") for pair in pairs for r in pair]
    assert evidence(rows).noise_sources["imports"].noise == share(0, 100)
    declared = evidence([r._replace(correct=None) for r in rows])
    assert (declared.label_noise.value, declared.label_noise.n) == (0.0, 0)


def test_people_replace_the_audit_once_they_have_reviewed_enough() -> None:
    rows = [rated(str(p), str(i), 0.75 if i == 0 else 0.25) for p in range(50) for i in range(4)]
    assert evidence(rows, share(5, 99)).label_noise.value is None
    found = evidence(rows, share(5, 100)).label_noise
    assert found.value == pytest.approx(0.05)
    assert found.high == pytest.approx((share(5, 100).high or 0) * 200 / 100), "each wrong label may sit in a pair"


known = st.tuples(st.integers(1, 60), st.floats(0, 1)).map(lambda drawn: share(drawn[0] * drawn[1], drawn[0]))


@given(st.lists(st.tuples(st.floats(0.01, 1), known | st.just(UNKNOWN)), min_size=1, max_size=3))
def test_noise_of_a_mix_lies_between_its_parts(mix: list[tuple[float, Estimate]]) -> None:
    total = sum(weight for weight, _ in mix)
    sources = {str(i): NoiseSource(share=w / total, noise=noise) for i, (w, noise) in enumerate(mix)}
    found = label_noise(sources)
    if found.value is None or found.low is None or found.high is None:
        assert sum(s.share for s in sources.values() if s.noise.value is None) > 0.5
        return
    assert 0 <= found.low <= found.value + 1e-9
    assert found.value <= found.high + 1e-9 <= 1 + 2e-9
    assert found.high <= max(1.0 if s.noise.high is None else s.noise.high for s in sources.values()) + 1e-9
    if len(mix) == 1:
        assert found.value == pytest.approx(mix[0][1].value)
        assert found.high == pytest.approx(mix[0][1].high)
