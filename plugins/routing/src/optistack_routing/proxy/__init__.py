"""The data plane: a request in, the same bytes to a replica, its answer's bytes back."""
