"""Torture: real consumers over a real broker and a real store, harmed by a seeded schedule, and the history examined.

`idempotent torture` is the command; `TortureRun` is what it runs.
"""

from idempotent.testing.torture.report import TortureReport
from idempotent.testing.torture.run import TortureRun
from idempotent.testing.torture.servers import Servers
from idempotent.testing.torture.settings import Settings

__all__ = ["Servers", "Settings", "TortureReport", "TortureRun"]
