"""Take the CUDA records on a rented or lent GPU machine with a time limit a command.

``python -m benchmarks.kit`` is the command; its help, and CONTRIBUTING.md, say how.

==============  ====================================================================================
``plan.toml``   what is measured, most valuable first, in pieces with a budget each
``plan.py``     reads it, and says which benchmarks a piece holds
``state.py``    what has been measured: a folder that travels back and comes again
``plugin.py``   inside pytest: keeps every result as soon as it is there, stops in time
``runner.py``   outside of pytest: starts the suites, ends what hangs, comes to an end in time
``pack.py``     before the machine: wheels, sizes, the commands
==============  ====================================================================================
"""
