"""The runner over OpenVINO: paged attention on the CPU."""
