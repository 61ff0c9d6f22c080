"""The flags of a launch, one module a domain. Each adds its flags to a builder, from one request."""
