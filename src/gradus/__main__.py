"""`python -m gradus` is the program `gradus`."""

from gradus.flows.cli.main import main

main()
