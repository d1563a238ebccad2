"""How fast generators decode, side by side with other engines: `make bench`."""
