"""Text and pixels to arrays and back, the same code at export (parity) and in the gateway."""
