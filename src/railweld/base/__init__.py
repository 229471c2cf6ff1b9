"""The base stage: order of roles, convergence, package families, versions."""
