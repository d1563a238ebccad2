"""What benchmarks share: systems under test, interleaved rounds, closed loops, reports."""
