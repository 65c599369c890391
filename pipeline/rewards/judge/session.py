"""A judge that is open: questions in, judgements out, in the order they were asked, each reported once it is known."""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager

from pipeline.core import layout
from pipeline.core.storage import Store, digest_json
from pipeline.recipe.rewards import Judge
from pipeline.rewards.findings import JudgeSpending
from pipeline.rewards.judge.admission import admit
from pipeline.rewards.judge.answers import (
    Admission,
    Judgement,
    JudgeReason,
    JudgeRequest,
    PairComparison,
    Preferred,
    Side,
)
from pipeline.rewards.judge.client import JudgeClient
from pipeline.rewards.judge.prompt import SCORE, VERSION, WINNER, compare_prompt, read_score, read_winner, score_prompt
from pipeline.serving.client import AskingLoop, open_asking_loop
from pipeline.serving.endpoint import Endpoint, check_endpoint


class JudgeSession:
    """One judge behind one endpoint. `id` stands for model, rubric and prompt: equal ids, comparable answers."""

    def __init__(self, settings: Judge, loop: AskingLoop[JudgeClient], spent: JudgeSpending) -> None:
        self.settings, self._loop, self.spent = settings, loop, spent
        self.id = judge_id(settings)

    def admit(self, lineage: Collection[str]) -> Admission:
        """Let this judge in, or raise JudgeRefused: the start-up gate of `admission.py`.

        `lineage`: digests of all models that the policy descends from, and of those that descend from it.
        """
        self._loop.client.quotes_refusals = True  # its controls and attacks are ours
        try:
            return admit(self.settings, self.id, lineage, self.score)
        finally:
            self._loop.client.quotes_refusals = False

    def score(
        self, asked: Sequence[JudgeRequest], done: Callable[[int, Judgement], None] | None = None
    ) -> list[Judgement]:
        """One judgement each, in their order. `done(place, judgement)` is called as soon as one is known."""
        return self._loop.all(asked, self._score, done)

    def compare(
        self, asked: Sequence[PairComparison], done: Callable[[int, Preferred], None] | None = None
    ) -> list[Preferred]:
        """The better of each two, asked in both orders against position bias (MT-Bench, arXiv 2306.05685)."""
        return self._loop.all(asked, self._compare, done)

    async def _score(self, asked: JudgeRequest) -> Judgement:
        if self._too_long(asked.messages, asked.completion, asked.reference or ""):
            return Judgement(score=None, reason=JudgeReason.TOO_LONG)
        reply, tokens, usd = await self._loop.client.ask(score_prompt(asked, self.settings.rubric), SCORE)
        read = reply.reason if reply.content is None else read_score(reply.content)
        score, reason = ((read - 1) / 4, "") if isinstance(read, int) else (None, str(read))
        return Judgement(score=score, reason=reason, tokens=tokens, usd=usd)

    async def _compare(self, asked: PairComparison) -> Preferred:
        if self._too_long(asked.messages, asked.first, asked.second):
            return Preferred(reason=JudgeReason.TOO_LONG)
        winners: list[Side] = []
        paid_tokens, paid_usd = 0, 0.0
        swapped = PairComparison(asked.messages, asked.second, asked.first)
        in_order: tuple[Side, Side] = ("first", "second")
        for order, sides in ((asked, in_order), (swapped, in_order[::-1])):
            reply, tokens, usd = await self._loop.client.ask(compare_prompt(order, self.settings.rubric), WINNER)
            paid_tokens, paid_usd = paid_tokens + tokens, paid_usd + usd
            read = reply.reason if reply.content is None else read_winner(reply.content)
            if read is None or isinstance(read, JudgeReason):  # the other order could not save it
                return Preferred(reason=str(read), tokens=paid_tokens, usd=paid_usd)
            winners.append("tie" if read == "tie" else sides["AB".index(read)])
        return Preferred(orders=tuple(winners), tokens=paid_tokens, usd=paid_usd)

    def _too_long(self, messages: Sequence[dict[str, str]], *texts: str) -> bool:
        most = self.settings.max_text_chars
        return sum(len(turn.get("content", "")) for turn in messages) > most or any(len(t) > most for t in texts)


def judge_endpoint(environment: Mapping[str, str]) -> Endpoint | None:
    """Where JUDGE_URL and JUDGE_API_KEY say; None where JUDGE_URL is not set."""
    url = environment.get("JUDGE_URL", "")
    return Endpoint(url, environment.get("JUDGE_API_KEY", "")) if url else None


@contextmanager
def open_judge(
    endpoint: Endpoint,
    settings: Judge,
    spent: JudgeSpending | None = None,
    log: Callable[[str], None] = print,
    *,
    backoff_s: float = 0.5,
) -> Generator[JudgeSession]:
    """A judge at `endpoint`, which is not asked anything before `admit`, `score` or `compare` are called.

    `spent`: what of the recipe's budget is gone; what is asked now is added to it. Raises ValueError for an endpoint
    that cannot be used.
    """
    check_endpoint(endpoint, "The judge's", "JUDGE")
    spent = JudgeSpending() if spent is None else spent
    client = JudgeClient(endpoint, settings, spent, log, backoff_s)
    with open_asking_loop(client, settings.concurrency) as loop:
        yield JudgeSession(settings, loop, spent)


def admit_once(
    store: Store,
    iteration: str,
    session: JudgeSession,
    lineage: Collection[str],
    book: Callable[[int, float], None],
) -> None:
    """Admit the judge once an iteration. `book` gets the tokens and dollars, whether the judge is let in or not."""
    name = f"{layout.JUDGES}/{session.id}/{iteration}.json"
    if store.read(name, Admission) is not None:
        return
    tokens, usd = session.spent.tokens, session.spent.usd
    try:
        admission = session.admit(lineage)
    finally:
        book(session.spent.tokens - tokens, session.spent.usd - usd)
    store.once(name, Admission, lambda: admission)


def judge_id(settings: Judge) -> str:
    """Digest of what makes a judge's answers comparable: the model, its weights, the rubric, the prompt."""
    return digest_json([VERSION, settings.model_dump(include={"model", "digest", "rubric", "max_completion_tokens"})])
