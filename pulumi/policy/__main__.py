"""Entry point of the policy pack."""

from analyzer import main

main()
