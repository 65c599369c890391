"""What the loop does, in plain Python: traces -> rewards -> selection -> training -> registry, over serving.

Nothing here knows an orchestrator or a cluster. Each stage is one package, named by the word that `assets/` and
`tests/` use for it too.
"""
