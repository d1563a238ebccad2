"""The HTTP and gRPC front."""
