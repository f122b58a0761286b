"""Script: a Lua file of this folder, with its constants filled in."""

from __future__ import annotations

from importlib.resources import files

from idempotent.admin import NEVER_US
from idempotent.claims import UNKNOWN_EFFECT
from idempotent.stores.redis.scripts import Lua


class Script(Lua):
    """A Lua file of this folder; `--#layout` in it is replaced by `layout.lua`.

    Args:
        name: the file's name, without `.lua`.
        lease_us: lease of a claim in microseconds; 0: a claim never lapses.
        retention_us: how long a key is remembered, in microseconds.
        dead_retention_us: how long a DEAD key is remembered, in microseconds; 0: until a person resolves it.
    """

    __slots__ = ()

    def __init__(
        self, name: str, *, lease_us: int = 0, retention_us: int = 0, dead_retention_us: int = 0
    ) -> None:
        folder = files(__package__ or "")
        layout = (folder / "layout.lua").read_text()
        text = (folder / f"{name}.lua").read_text().replace("--#layout\n", layout)
        # Counted from the claim, rounded up to milliseconds: no shorter than the lease or the retention.
        remember_ms = -(-max(lease_us, retention_us) // 1000) + 1
        # Constants are part of the text: passing one as an argument costs as much as a command.
        constants = (
            f"local LEASE, RETENTION, REMEMBER_MS = {lease_us}, {retention_us}, '{remember_ms}'\n"
            f"local DEAD_RETENTION, NEVER = {dead_retention_us}, {NEVER_US}\n"
            f"local REASON = [[{UNKNOWN_EFFECT}]]\n"
        )
        super().__init__(constants + text)
