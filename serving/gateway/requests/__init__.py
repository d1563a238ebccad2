"""From a request to its plan, its execution and its response, for every protocol."""
