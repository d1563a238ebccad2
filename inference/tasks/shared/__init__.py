"""Building blocks of tasks: from a request's items to model calls, and from outcomes to items.

Pure functions and data, no I/O: the gateway runs the calls.
"""
