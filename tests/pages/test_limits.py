"""docs/reference/limits.md says the limits of the code."""

import inspect
import re
from pathlib import Path

import pytest

from idempotent.adapters.activemq import frames
from idempotent.adapters.files import FileAdapter
from idempotent.adapters.idempotency_key import _VISIBLE, MAX_BODY
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.rabbitmq import publisher, topology
from idempotent.adapters.rabbitmq.options import MOST_PREFETCH
from idempotent.adapters.spark.tasks import handlers
from idempotent.checkers.batching import batcher
from idempotent.checkers.memory import DEFAULT_MAX_KEYS
from idempotent.checkers.sql import transactional
from idempotent.claims import ERROR_LIMIT, UNBOUNDED
from idempotent.errors import LONGEST, ConfigurationError
from idempotent.keys import _MOST_BITS, SHOWN, TEXT_LIMIT
from idempotent.outbox import entries, inserts
from idempotent.outbox.relays import batches
from idempotent.processing.binding import RESULT_LIMIT
from idempotent.redrive import reading
from idempotent.schema import DESTINATION_LENGTH, ID_LENGTH, KEY_TEXT_LENGTH, MAX_TABLE_NAME, SCHEMA_NAME
from idempotent.stores.redis.scripts import MAX_KEYS
from idempotent.stores.sql.dialects import MAX_ROWS
from idempotent.validation import LONGEST_S, from_text
from idempotent.worker.holds import MAX_CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text()
DAY_S = 86400


def default(adapter, option):
    return inspect.signature(adapter).parameters[option].default


LIMITS = {
    "text of a key, in characters": TEXT_LIMIT,
    "name of a consumer, `subject:group`, in characters": SHOWN,
    "an int as a key, in bits": _MOST_BITS,
    "`Idempotency-Key`, in characters": max(n for n in range(999) if _VISIBLE.fullmatch("k" * n)),
    "name of a table, in ASCII characters": MAX_TABLE_NAME,
    "name of a schema, in characters": max(n for n in range(999) if SCHEMA_NAME.fullmatch("s" * n)),
    "`last_error`, in characters": ERROR_LIMIT,
    "text of an error in the log, in characters": LONGEST,
    "stored result, in bytes": RESULT_LIMIT,
    "result of a handler of Spark, in bytes": handlers._MAX_RESULT_BYTES,
    "body of an HTTP request with a key, and its answer, in bytes": MAX_BODY,
    "`max_attempts`": UNBOUNDED,
    "durations, in days": LONGEST_S / DAY_S,
    "`lock_timeout_s`, in days": transactional._LONGEST_LOCK_S / DAY_S,
    "keys of a `MemoryChecker`": DEFAULT_MAX_KEYS,
    "keys in one SQL statement": MAX_ROWS,
    "keys in one call of Redis": MAX_KEYS,
    "claims that go together": batcher.MOST,
    "`prefetch` of RabbitMQ": MOST_PREFETCH,
    "name of a queue of RabbitMQ with its suffixes, in bytes": topology._QUEUE_BYTES,
    "all headers of a message on RabbitMQ, in bytes": publisher._MOST_HEADER_BYTES,
    "line of a STOMP frame, in bytes": frames._LONGEST_LINE,
    "headers of a STOMP frame": frames._MOST_HEADERS,
    "line of a file, in bytes": default(FileAdapter, "max_line_bytes"),
    "received, unfinished bytes of Kafka": default(KafkaAdapter, "max_pending_bytes"),
    "times a held delivery is looked at": MAX_CHECKS,
    "dead letters that a command looks at": reading._MOST_HELD,
    "id, subject and order key in an outbox, in characters": ID_LENGTH,
    "name of a destination of an outbox, in characters": DESTINATION_LENGTH,
    "messages of an outbox in one INSERT": inserts._ROWS,
    "bytes that a relay reads at once": batches._BYTES,
    "buckets, and so relays at work for each broker": entries.BUCKETS,
}


def test_the_page_has_each_limit_with_its_value():
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \| .+ \|$", PAGE, re.MULTILINE)
    written = {re.sub(r"\[(.+?)\]\(.+?\)", r"\1", what): int(limit.replace(",", "")) for what, limit in rows}
    assert written == LIMITS
    assert KEY_TEXT_LENGTH == TEXT_LIMIT


def test_the_page_has_the_truth_values_of_urls():
    [yes], [no] = (re.findall(rf"`{first}`, `\w+` and `\w`", PAGE) for first in ("true", "false"))
    for words, meaning in ((yes, True), (no, False)):
        for word in re.findall(r"`(\w+)`", words):
            assert from_text("x", word.upper(), {"x": bool}) is meaning
    for word in ("on", "off"):
        assert f"`{word}`" in PAGE
        with pytest.raises(ConfigurationError):
            from_text("x", word, {"x": bool})
