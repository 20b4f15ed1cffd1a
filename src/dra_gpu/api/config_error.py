"""The error of an opaque config that cannot be used, whatever kind it is."""


class InvalidConfigError(ValueError):
    """An opaque config cannot be used. The message names the field, the reason and the remedy."""
