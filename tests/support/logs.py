"""The events that a test has logged."""

from __future__ import annotations

import logging

import pytest


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Their names, without the records of other libraries."""
    return [record.event for record in caplog.records if hasattr(record, "event")]


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    """The records of one event."""
    return [record for record in caplog.records if getattr(record, "event", None) == event]
