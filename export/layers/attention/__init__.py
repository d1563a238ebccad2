"""Forms of attention: heads, scores, positions, rotations, windows and masks."""
