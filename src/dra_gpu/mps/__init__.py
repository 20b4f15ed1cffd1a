"""MPS: the control daemons of shared GPUs, in a process of their own that outlives the node plugin."""
