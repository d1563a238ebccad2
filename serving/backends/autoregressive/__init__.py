"""The backend that hosts an engine inside Triton."""
