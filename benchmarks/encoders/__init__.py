"""Encoders of text and images beside other runtimes: `python -m benchmarks.encoders`."""
