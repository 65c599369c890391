"""What the loop does, in plain Python: traces -> rewards -> selection -> training -> registry, and serving beneath them.

Nothing here knows an orchestrator or a cluster. Each stage is one package, named by the word that `assets/` and
`tests/` use for it too.
"""
