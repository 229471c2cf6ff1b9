"""Entry point of `pulumi up`."""

from program import main

main()
