"""Selection: from labels to pairs and prompts, and from evidence to GRPO, DPO or "not now"."""
