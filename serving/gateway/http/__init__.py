"""HTTP: connections, middleware, routes."""
