"""The stand-in's release, as a checkout of NeMo RL has it."""

MAJOR = 0
MINOR = 7
PATCH = 0
PRE_RELEASE = ""
