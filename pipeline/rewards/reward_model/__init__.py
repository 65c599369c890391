"""The reward model: a scorer of completions without a reference, trained on the thumbs of production's users. A copy of
the champion with a linear head on the last token; everything that measures it is of users not trained on."""

from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.rewards.reward_model.scorer import AnsweredChat, RewardScorer, open_scorer
from pipeline.rewards.reward_model.stage import train_reward_model

__all__ = ["AnsweredChat", "RewardModelReport", "RewardScorer", "open_scorer", "train_reward_model"]
