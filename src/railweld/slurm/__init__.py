"""Slurm of a site: what follows from the description, its files, and what a change needs."""
