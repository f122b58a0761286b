"""The command `idempotent`. Needs the extra `cli`: typer and rich."""
