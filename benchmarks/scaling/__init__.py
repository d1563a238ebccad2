"""Past one machine: measured costs of a request, and a simulation of many machines."""
