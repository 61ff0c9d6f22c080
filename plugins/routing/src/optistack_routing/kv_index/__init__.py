"""Precise mode: what each replica's KV cache really holds, from the events that engines publish.

``overlap``     the one interface that the router uses
``events``      what engines publish, in one form for all of them
``subscriber``  follows the replicas' streams, gaps and restarts included
``index``       which replicas hold which blocks
``prompt``, ``session_tokens``  from a request's body to its token ids

It needs the extra ``precise`` of this plugin (pyzmq, msgspec, tokenizers, jinja2); nothing here is imported without it.
"""
