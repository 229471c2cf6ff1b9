"""The whole chain behind one command, made of the commands that operators know."""
