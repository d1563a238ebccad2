"""Bulk work: the rows of files through a task, with an engine in each worker process (D107)."""
