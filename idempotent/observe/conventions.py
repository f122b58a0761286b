"""Every name that the traces and metrics of OpenTelemetry have: those of its semantic conventions, and our own.

The conventions for messaging are not stable yet (status Development, version 1.44), so a new version of them changes
this file alone. Source: https://opentelemetry.io/docs/specs/semconv/messaging/
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

# Values of OPERATION_NAME and OPERATION_TYPE, and the first words of the spans' names.
PROCESS: Final = "process"
SETTLE: Final = "settle"
SEND: Final = "send"

PROCESS_DURATION: Final = "messaging.process.duration"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
# In seconds, as the conventions ask for each duration.
DURATION_BOUNDARIES: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

OUTCOME: Final = "idempotent.outcome"
ATTEMPT: Final = "idempotent.attempt"
FENCE: Final = "idempotent.fence"
KEY: Final = "idempotent.key"

# Values of OUTCOME beside those of `Outcome`, of a run that had no result.
UNDONE: Final = "undone"
INTERRUPTED: Final = "interrupted"

# Values of SYSTEM, by a package in which the class of `Message.raw` is: that of the adapter, or of the client library.
SYSTEMS: Final = {"rabbitmq": "rabbitmq", "confluent_kafka": "kafka", "stomp": "activemq"}
NO_BROKER: Final = "idempotent"
