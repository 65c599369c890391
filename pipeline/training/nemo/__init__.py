"""NeMo RL (github.com/NVIDIA-NeMo/RL) as a second engine: the same plan in, the same result out.

Owns the translation: the plan to NeMo RL's YAML and data files, its output lines, checkpoints and weights back to ours.
Refuses to train anything itself and to own NeMo RL's defaults: what the plan does not decide comes from the example
configuration of the checkout. Its behaviour is taken from its example configurations and its source, around 0.6; it
needs GPUs and Ray, and has not been run by this project: the tests drive a stand-in with its layout.
"""
