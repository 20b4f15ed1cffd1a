"""What holds for every test: generated examples have no deadline and are the same in each run.

`pytest --hypothesis-profile=search` looks for new ones.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("repeatable"), derandomize=False)
settings.load_profile("repeatable")
