"""The names are those of OpenTelemetry's conventions, and the page has them all."""

import re
from pathlib import Path

from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes

from idempotent.observe import conventions as names
from idempotent.outcomes import Outcome

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "tracing.md"
OPERATIONS = ("PROCESS", "SETTLE", "SEND")
ATTRIBUTES = (
    "SYSTEM",
    "OPERATION_NAME",
    "OPERATION_TYPE",
    "DESTINATION",
    "PARTITION",
    "GROUP",
    "MESSAGE_ID",
    "BATCH_COUNT",
    "ERROR_TYPE",
    "OUTCOME",
    "ATTEMPT",
    "FENCE",
    "KEY",
)
METRICS = ("PROCESS_DURATION", "CONSUMED_MESSAGES")
OTHERS = ("DURATION_BOUNDARIES", "UNDONE", "INTERRUPTED", "SYSTEMS", "NO_BROKER")


def values(*of):
    return {getattr(names, name) for name in of}


def texts_in(module):
    return {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def test_each_name_is_one_of_the_conventions_or_our_own():
    constants = {name for name in vars(names) if name.isupper()}
    assert constants == {*OPERATIONS, *ATTRIBUTES, *METRICS, *OTHERS}
    theirs = texts_in(messaging_attributes) | texts_in(error_attributes)
    assert {name for name in values(*ATTRIBUTES) if not name.startswith("idempotent.")} <= theirs
    assert values(*METRICS) <= texts_in(messaging_metrics)
    types = {each.value for each in messaging_attributes.MessagingOperationTypeValues}
    assert values(*OPERATIONS) <= types
    systems = {each.value for each in messaging_attributes.MessagingSystemValues}
    assert set(names.SYSTEMS.values()) <= systems
    assert not {names.UNDONE, names.INTERRUPTED} & {each.value for each in Outcome}


def test_the_page_has_every_span_attribute_and_metric():
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    spans = {f"{operation} {{subject}}" for operation in values(*OPERATIONS)}
    assert sorted(rows) == sorted(spans | values(*ATTRIBUTES) | values(*METRICS))
