"""Start, watch and stop engines that are other people's processes.

``deployment``  what the rest of optistack calls: start, find, list, stop
``launch``      what is to be started, as a value
``state``       what is running, as written in the deployment's folder
``supervisor``, ``guardian``  the two processes that stay with an engine
``shared_memory``  what a killed engine has left in /dev/shm
``diagnose``    the reason of a failed start, found in the engine's log

Nothing is imported here: the guardian runs from this package and must stay small.
"""
