"""Torture: real consumers over a real broker and a real store, harmed by a seeded schedule, and the history examined.

`idempotent torture` is the command; `TortureRun` is what it runs.
"""

from idempotent.torture.examination.report import TortureReport
from idempotent.torture.faults.schedule import Servers
from idempotent.torture.run import TortureRun
from idempotent.torture.settings import Settings

__all__ = ["Servers", "Settings", "TortureReport", "TortureRun"]
