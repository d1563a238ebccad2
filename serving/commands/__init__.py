"""Commands of `triptych` that serve models; the command line loads each when it is called."""
