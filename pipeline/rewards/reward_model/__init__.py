"""The reward model: a scorer of completions without a reference, trained on the thumbs of production's users.

A copy of the champion (or the recipe's `base`) with a linear head on the last token, trained pointwise: binary
cross-entropy on thumbs up and down. Everything that measures it comes from users that it was never trained on. It
scores fresh completions for training and for the choice of a method, and never decides a promotion.
"""

from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.rewards.reward_model.scorer import AnsweredChat, RewardScorer, open_scorer
from pipeline.rewards.reward_model.stage import train_reward_model

__all__ = ["AnsweredChat", "RewardModelReport", "RewardScorer", "open_scorer", "train_reward_model"]
