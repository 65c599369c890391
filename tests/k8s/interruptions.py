"""Interruptions of a simulated training, for tests that need a given number of them."""

from k8s.simulate import Profile, run


def evenly(profile: Profile, interruptions: int) -> list[float]:
    """So many interruptions, spread evenly over the time of an undisturbed training."""
    whole = run(profile, ()).total_s
    return [whole * (number + 1) / (interruptions + 1) for number in range(interruptions)]
