"""Registry: a candidate on record, and its way to the traffic and, if need be, back."""
