"""`python -m idempotent` is the command `idempotent`."""

from idempotent.cli.app import main

if __name__ == "__main__":
    main()
