"""The router as a process: its configuration, its servers, and how it starts and stops."""
