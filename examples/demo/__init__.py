"""`make demo`: a request to each endpoint, with the pictures that it sends."""
