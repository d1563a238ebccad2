"""`make gpu-check`: everything that only a card can show, in one run."""
