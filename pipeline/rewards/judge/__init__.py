"""The LLM judge: any OpenAI-compatible endpoint that scores a completion, or says which of two is better. An answer
that is not exactly what was asked for is an abstention with a reason, never a score."""

from pipeline.rewards.judge.answers import Admission as Admission
from pipeline.rewards.judge.answers import JudgeAway as JudgeAway
from pipeline.rewards.judge.answers import Judgement as Judgement
from pipeline.rewards.judge.answers import JudgeReason as JudgeReason
from pipeline.rewards.judge.answers import JudgeRefused as JudgeRefused
from pipeline.rewards.judge.answers import JudgeRequest as JudgeRequest
from pipeline.rewards.judge.answers import PairComparison as PairComparison
from pipeline.rewards.judge.answers import Preferred as Preferred
from pipeline.rewards.judge.session import JudgeSession as JudgeSession
from pipeline.rewards.judge.session import open_judge as open_judge
from pipeline.serving.endpoint import Endpoint as Endpoint
