"""Code that follows from the tasks, written by `make proto`; do not edit."""
