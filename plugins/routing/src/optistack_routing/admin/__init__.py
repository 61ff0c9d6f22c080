"""The admin side: the state of the router, its metrics, and the replicas as they are changed by hand."""
