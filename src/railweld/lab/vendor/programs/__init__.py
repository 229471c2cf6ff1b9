"""Stand-ins for the vendors' programs. Standard library only: they run inside a lab node.

Each module has `main(argv, build, machine)` and becomes one executable file in its package.
"""
