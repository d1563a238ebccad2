"""`triptych verify`: the gate on a published bundle, and the report of its results."""
