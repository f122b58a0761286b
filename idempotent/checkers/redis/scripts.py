"""Script: one of the Lua files of this folder, with its constants."""

from __future__ import annotations

from importlib.resources import files

from idempotent.claims import UNKNOWN_EFFECT
from idempotent.stores.redis.scripts import Lua


class Script(Lua):
    """A Lua file of this folder, the layout where it asks for it."""

    __slots__ = ()

    def __init__(self, name: str, *, lease_us: int = 0, retention_us: int = 0) -> None:
        """Read it from the package.

        Args:
            name: of the file.
            lease_us: lease of a claim in microseconds; 0: none.
            retention_us: how long a key is remembered, in microseconds.
        """
        folder = files(__package__ or "")
        layout = (folder / "layout.lua").read_text()
        text = (folder / f"{name}.lua").read_text().replace("--#layout\n", layout)
        # From the claim, in whole milliseconds, and never less than either.
        remember_ms = -(-max(lease_us, retention_us) // 1000) + 1
        # Numbers that never change are part of the text: as arguments they cost as much as a command.
        constants = (
            f"local LEASE, RETENTION, REMEMBER_MS = {lease_us}, {retention_us}, '{remember_ms}'\n"
            f"local REASON = [[{UNKNOWN_EFFECT}]]\n"
        )
        super().__init__(constants + text)
