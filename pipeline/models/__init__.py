"""Base models of any family: tokenizer, rendering of conversations, and the export after a run."""
