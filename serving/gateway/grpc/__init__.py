"""gRPC: the service, its health, its limits."""
