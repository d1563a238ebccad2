"""Who may send what, and whose turn it is."""
