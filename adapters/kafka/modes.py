"""Which settings and consumers of a KafkaAdapter go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from idempotent.adapters.kafka.options import Ordering, Semantics
from idempotent.consumer import Consumer
from idempotent.errors import ConfigurationError

_ISOLATION: Final = "isolation.level"


def check_semantics(
    semantics: Semantics,
    ordering: Ordering,
    *,
    retry_topic: bool,
    transactional_id: str | None,
    own: Mapping[str, Any],
) -> None:
    """Refuse what the semantics cannot keep its promise with; `own` are the user's settings of the consumer.

    Raises:
        ConfigurationError: there is something.
    """
    is_transactional = semantics is Semantics.EXACTLY_ONCE
    if semantics is Semantics.AT_MOST_ONCE and ordering is Ordering.KEY:
        # A commit covers all before it, so also what waits for its key.
        raise ConfigurationError("semantics='at_most_once' goes with the orderings 'partition' and 'none'")
    if retry_topic and (semantics is Semantics.AT_MOST_ONCE or ordering is not Ordering.NONE):
        raise ConfigurationError("retry_topic=True gives up the order: it goes with ordering='none' alone")
    if retry_topic and is_transactional:
        raise ConfigurationError(
            "retry_topic=True cannot go with semantics='exactly_once': a copy may come twice, and so would its outputs"
        )
    if transactional_id is not None and not is_transactional:
        raise ConfigurationError("transactional_id= goes with semantics='exactly_once' alone")
    if transactional_id == "":
        raise ConfigurationError("transactional_id must not be empty; None makes one")
    if is_transactional and own.get(_ISOLATION, "read_committed") != "read_committed":
        raise ConfigurationError(
            f"{_ISOLATION} must stay 'read_committed' with semantics='exactly_once': else a message may be read that "
            "never was, and an offset that another process is about to commit be missed"
        )


def check_consumers(semantics: Semantics, ordering: Ordering, consumers: Sequence[Consumer]) -> None:
    """Refuse consumers and checkers that the semantics cannot keep its promise with.

    Raises:
        ConfigurationError: there is one.
    """
    for consumer in consumers:
        remembers, kind = consumer.checker.remembers_done, type(consumer.checker).__name__
        if semantics is Semantics.EXACTLY_ONCE and remembers:
            raise ConfigurationError(
                f"{consumer.name}: with semantics='exactly_once' a transaction of Kafka decides what is done, and a "
                f"{kind} would remember messages whose transaction failed: their outputs would be lost. Use "
                "idempotent.checkers.AttemptChecker(), which remembers none"
            )
        if semantics is Semantics.EXACTLY_ONCE and consumer.handler.batch:
            raise ConfigurationError(
                f"{consumer.name}: batch=True cannot go with semantics='exactly_once': nobody knows which output is of "
                "which message. Transactions are of many messages anyway; see commit_every"
            )
        if semantics is Semantics.EFFECTIVELY_ONCE and not remembers:
            raise ConfigurationError(
                f"{consumer.name}: semantics='effectively_once' needs a checker that remembers what is done, and a "
                f"{kind} does not"
            )
        if (remembers and consumer.checker.keeps_positions) and (
            ordering is not Ordering.PARTITION or semantics is Semantics.AT_MOST_ONCE
        ):
            raise ConfigurationError(
                "an OffsetChecker counts on the order of a partition: it goes with ordering='partition' and with every "
                "semantics but 'at_most_once'"
            )
