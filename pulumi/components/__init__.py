"""Components of the stack, one per add-on. What they make is rendered by `railweld.stack`."""
