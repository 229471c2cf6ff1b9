"""What runs inside a lab node. Standard library only; installed at /usr/lib/railweld-lab."""
