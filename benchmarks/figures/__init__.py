"""The figures of `examples/attention`, one module each: `python -m benchmarks.figures`."""

NAMES = (
    "alignment",
    "steps",
    "scaling",
    "heads",
    "masks",
    "sinusoids",
    "learned",
    "relative",
    "rotary",
    "regions",
    "rollout",
    "cache",
    "memory",
)
"""In the order of the page; each is a module of this package that declares FIGURE."""
