"""Scaffolding of stateless text models: heads by `architectures`, pooling, and graphs by role."""
