"""Torture: real consumers over a real broker and a real store, harmed by a seeded schedule, and the history examined.

`python -m tests.torture servers` is the command; `TortureRun` is what it runs.
"""

from tests.torture.examination.report import TortureReport
from tests.torture.faults.schedule import Servers
from tests.torture.run import TortureRun
from tests.torture.settings import Settings

__all__ = ["Servers", "Settings", "TortureReport", "TortureRun"]
