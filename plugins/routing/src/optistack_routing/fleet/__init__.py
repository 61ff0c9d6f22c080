"""Which replicas there are, which of them may be used, and who is waiting for one."""
