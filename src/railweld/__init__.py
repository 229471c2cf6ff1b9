"""railweld: one description of a GPU site, from bare nodes to a running training job."""
