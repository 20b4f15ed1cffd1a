"""How well GPUs are: what happened to them is judged by one policy, kept over restarts, and told to whoever asks."""
