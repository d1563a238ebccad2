"""Triptych's public package: the wire's messages, the clients and the command line."""
