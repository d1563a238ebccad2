"""The stack file, and a run of it in Docker Engine's swarm mode."""
