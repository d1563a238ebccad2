"""What all supervisors of child processes share: start, exit reason, end, delay before a restart.

How processes are watched and what follows differs from one supervisor to the next and is theirs
(D88).
"""
