"""The reward model: a scorer of completions without a reference, trained on the thumbs of production's users. A copy of
the champion with a linear head on the last token; everything that measures it is of users not trained on."""
