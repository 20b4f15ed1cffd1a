"""The one error type of the lab: its text names the object, the reason and what to do."""


class LabError(Exception):
    """Something the lab cannot go on from; the message is meant for the person at the terminal."""
