"""How good a candidate is: suites, paired runs, statistics and the gate. Knows `pipeline` and nothing above it."""
