"""Names the cause behind logs and failed checks, from one catalogue of known faults."""
