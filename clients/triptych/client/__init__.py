"""Clients over HTTP and gRPC, waiting and asynchronous."""
