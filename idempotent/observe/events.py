"""Event: the events that are counted besides outcomes."""

from __future__ import annotations

from enum import Enum


class Event(Enum):
    """Events that are counted besides outcomes."""

    RAN_WITHOUT_KEY = "ran_without_key"
    """A handler ran unprotected, as the consumer allows: the message had no key, or the store did not answer."""
    RAN_DISABLED = "ran_disabled"
    """A handler ran although its key was not acquired, because the kill switch is on."""
    LEASE_TAKEN_OVER = "lease_taken_over"
    """A delivery became the owner of a key whose lease had ended."""
    LEASE_RENEWED_LATE = "lease_renewed_late"
    """A lease ended before it was renewed or its handler finished: another delivery could have taken the key over."""
    COMPLETION_LOST = "completion_lost"
    """An effect happened, but another delivery had taken over its key: the effect may happen twice."""
    COMPLETION_NOT_RECORDED = "completion_not_recorded"
    """An effect happened, but the store did not record the completion; the completion is retried."""
    RESULT_NOT_STORED = "result_not_stored"
    """The handler's result could not be stored; duplicates get no result."""
    GROUP_REPEATED = "group_repeated"
    """A group was rolled back and its messages ran one by one."""
    TRANSACTION_REPEATED = "transaction_repeated"
    """The database rolled a transaction back, and the message ran again."""
