"""NeMo RL (github.com/NVIDIA-NeMo/RL) as a second engine: the same plan in, the same result out."""
