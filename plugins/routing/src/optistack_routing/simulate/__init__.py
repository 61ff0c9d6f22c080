"""Closed-loop sessions over a fleet of modelled replicas, with the policies that the router runs."""
