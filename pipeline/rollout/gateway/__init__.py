"""Gateway: what routes production's requests in the embedded deployment, to two models behind one address."""
