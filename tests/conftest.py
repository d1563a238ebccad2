"""Hypothesis profiles: how many examples each property is tested on.

`HYPOTHESIS_PROFILE=full` (set by `make test-all`) selects the thorough one.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", settings.get_profile("quick"), max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
