"""The loop's key figures: what its iterations gave, what they cost, and how they ended, folded from their records.

`records` is what is said, `ledgers` reads one iteration's files, `costs` makes its bill, `fold` adds iterations up, and
`event` shows the result in Dagster. Owns no figure of its own: each is in a record that a stage left. Refuses to guess:
what no record has is None, and a price that the recipe does not name is unknown, with the reason, never 0.
"""
