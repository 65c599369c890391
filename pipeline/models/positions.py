"""Positions of a left-padded batch, as generation counts them."""

from typing import Any


def count_positions_from_first_token(model: Any) -> None:
    """For models with learned positions (`wpe`: GPT-2 and its kin). Without this a forward pass counts from the first
    column, padding or not: 7 nats of difference between an answer alone and the same answer in a GRPO batch."""
    if not any(name.endswith("wpe") for name, _ in model.named_modules()):
        return

    def before(_: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = given.get("attention_mask")
        if given.get("position_ids") is None and mask is not None and mask.shape == given["input_ids"].shape:
            given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        return args, given

    model.register_forward_pre_hook(before, with_kwargs=True)
