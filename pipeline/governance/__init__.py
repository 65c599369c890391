"""Forgetting a user."""
