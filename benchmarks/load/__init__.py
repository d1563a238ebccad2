"""Load on a running gateway, closed-loop and open-loop."""
