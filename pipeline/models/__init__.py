"""Base models of any family: tokenizer, rendering of conversations, the check before a run and the export after it."""
