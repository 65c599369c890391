"""NeMo RL (github.com/NVIDIA-NeMo/RL) as a second engine: the same plan in, the same result out.

It follows NeMo RL's example configurations and source, around 0.6. The tests run a stand-in with its layout.
"""
