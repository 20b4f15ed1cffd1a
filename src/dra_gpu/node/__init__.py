"""The node plugin: the one place where settings become adapters and adapters become a process."""
