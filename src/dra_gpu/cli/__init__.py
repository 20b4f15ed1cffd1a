"""`kubectl gpu`: what people ask about GPUs in a cluster, from their shell."""
