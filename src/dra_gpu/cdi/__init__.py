"""The Container Device Interface: what a container gets of a device, as files that the container runtime reads."""
