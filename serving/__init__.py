"""Serving: everything between a published bundle and a user's answer. Never imports torch."""

import inference  # noqa: F401  (settings of libraries, before any of them is loaded)
