"""Fresh samples: completions of the champion to logged prompts, scored where no reference answer is known."""
