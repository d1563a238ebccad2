"""HTTP APIs in front of one service, one file each.

A dialect parses requests and renders answers, streams and errors in its own form; the service and
the tasks are the same for all.
"""
