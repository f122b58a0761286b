"""No text that anybody may have sent takes more than a time in proportion to its length: a thread that reads one holds
the interpreter, and with it all leases of the process."""

from __future__ import annotations

import io
import json
import logging
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pika
import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from rich.console import Console
from rich.file_proxy import FileProxy
from stomp.utils import parse_frame

from idempotent import Message
from idempotent.adapters.activemq.frames import (
    Frame,
    from_java,
    message_of,
    place_of,
    send_frame,
    to_java,
    unreadable,
)
from idempotent.adapters.activemq.options import Address
from idempotent.adapters.activemq.refusals import refusal
from idempotent.adapters.activemq.transport import FrameSplitter
from idempotent.adapters.copies import (
    came_from,
    dead_letter_headers,
    delayed_headers,
    fit_headers,
    number_in,
    returned_headers,
    take_ours,
)
from idempotent.adapters.files.adapter import RecordFormat
from idempotent.adapters.files.lines import Line
from idempotent.adapters.idempotency_key import BadKeyError, key_in
from idempotent.adapters.kafka.options import bootstrap_of
from idempotent.adapters.kafka.records import copied_headers, due_in_s, first_partition, outgoing
from idempotent.adapters.kafka.records import message_of as message_of_kafka
from idempotent.adapters.rabbitmq.messages import Received, late_s, message_from, properties_of_copy
from idempotent.adapters.rabbitmq.reading import readable_properties
from idempotent.adapters.rabbitmq.server import server_at
from idempotent.adapters.spark.keys import key_hash
from idempotent.adapters.urls import adapter_from_url
from idempotent.checkers.redis.layout import stored_failure
from idempotent.checkers.sql.watching import classify_transaction_end
from idempotent.checkers.urls import checker_from_url
from idempotent.claims import Failure
from idempotent.cli.terminal.output import plain
from idempotent.errors import IdempotentError, brief, described, mask, url_word, without_values
from idempotent.keys import KeySpace, canonical_json, consumer_in, consumer_named, key_from_text
from idempotent.logs import EventLog
from idempotent.message import Position
from idempotent.observe.formatters import JsonFormatter, TextFormatter
from idempotent.outbox.entries import entry_of
from idempotent.outbox.headers import decoded_headers, encoded_headers
from idempotent.outcomes import Outcome, Result
from idempotent.stores.sql.dialects import dialect_for
from idempotent.stores.sql.faults import as_store_error, explained
from tests.project.house import product

SMALL: Final = 10_000
LARGE: Final = 8 * SMALL
# A time in proportion grows 8 times from one to the other, a quadratic one 64 times.
MOST: Final = 24
# Times below this are noise; where a quadratic time does harm it is seconds for the large text.
NOISE_S: Final = 0.005
# Repeated, these begin what the patterns look for and never end it, or end it again and again.
PARTS: Final = [
    *("://", "://a:", "a://b:@", "http:/a:", "http/::", "mysql+", "redis://", "@", "a@b "),
    *("?password", "?a=", "&token=&", "Duplicate entry '", "value: '", "near '", 'invalid: "', "invalid: "),
    *('value "', "[parameters: ]", " DETAIL:", "'", '"', "] ", " ", "\n", "\r\n", "\\", "\\c", ":", "%", "%41", "+"),
    *("/*", "/* */", "--\n", ";", "; ", "(", "[", "{", '{"a":', "command denied, ", "Table '", "0", "\0", "\x1b["),
    *("\u00e9", "\U0001f600", "/1", "a=b&"),
]  # fmt: skip
MYSQL: Final = sa.create_engine("mysql+pymysql://me@host/db")
POSTGRESQL: Final = sa.create_engine("postgresql+psycopg://me@host/db")
log = EventLog("idempotent.tests.growth")
log.logger.propagate = False


class Row(NamedTuple):
    """A function that reads such a text, the module of the product whose patterns it matches, and other parts."""

    read: Callable[[str], object]
    module: str = ""
    parts: Sequence[str] = PARTS


def record(text: str) -> logging.LogRecord:
    error = ValueError(text)
    return logging.LogRecord("x", 30, "x", 1, "%s", (text,), (ValueError, error, None))


def logged(formatter: logging.Formatter) -> Callable[[str], object]:
    return lambda text: formatter.format(record(text))


def on_a_terminal(text: str) -> None:
    """Above the line of `idempotent replay` that shows progress."""
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    handler = logging.StreamHandler(FileProxy(console, console.file))
    handler.setFormatter(TextFormatter())
    handler.handle(record(text))


def refused(engine: sa.Engine, *error: Any) -> Callable[[str], object]:
    """A reader of the text of a driver's error."""
    kind, *code = error
    return lambda text: as_store_error(kind(*code, text), engine, "t")


def ends(dialect: str) -> Callable[[str], object]:
    return lambda text: [classify_transaction_end(dialect, begin + text) for begin in ("", "/*", "select ")]


def split(text: str) -> None:
    """Frames that come in small parts: without an end of the headers, with one, and with a length."""
    for begin in (b"MESSAGE\nn:", b"MESSAGE\n\n", b"MESSAGE\ncontent-length:9999999\n\n"):
        splitter, data = FrameSplitter(), begin + text.encode()
        for at in range(0, len(data), 16):
            splitter.add(data[at : at + 16])
            list(splitter)


def stomp(text: str) -> None:
    frame = parse_frame(f"MESSAGE\n{text}\nmessage-id:{text}\n\n{text}".encode())
    headers = {"message-id": "1", "n": text, "x-idempotent-exact": text, "x-idempotent-key": text}
    headers |= {f"x-idempotent-exact-{part}": text[:1000] for part in range(1, len(text) // 1000)}
    for each in (frame, Frame("MESSAGE", headers, text.encode())):
        message_of(each, "q", "/queue/q", redelivered=False)
        refusal(each, "a message")
        unreadable(each)
    send_frame("/queue/q", text.encode(), {"x-idempotent-key": text, "n": text})


def many_stomp_headers(text: str) -> None:
    send_frame("/queue/q", b"", {str(number): text[:1] for number in range(len(text))})


def kafka(text: str) -> None:
    pairs = [("n", text.encode()), (text, None), *(("n", b"x") for _ in text)]
    names = ("x-idempotent-key", "x-idempotent-due", "x-idempotent-origin", "x-idempotent-for")
    pairs += [(name, text.encode()) for name in names]
    raw = SimpleNamespace(
        headers=lambda: pairs, value=lambda: b"", topic=lambda: "t", partition=lambda: 0, offset=lambda: 3,
        timestamp=lambda: (1, 5), key=lambda: None,
    )  # fmt: skip
    message = message_of_kafka(raw, "t", Position("id", 0, 3, 3), False)
    due_in_s(raw)
    copied_headers(raw, {"x-idempotent-key": text})
    first_partition(message, "t")
    outgoing(Message("t", b"", id=text, headers={"n": text}))


def amqp(text: str) -> None:
    properties = pika.BasicProperties(headers={"n": text, "x-idempotent-key": text, "x-death": [text]})
    received = Received(SimpleNamespace(redelivered=False, delivery_tag=1), properties)
    message = message_from("q", received, b"")
    late_s(received)
    properties_of_copy(message, {**message.headers, "n": [text, {"m": text}]}).encode()


def undecodable_amqp(text: str) -> None:
    for table in (b"".join(b"\x01" + text[:1].encode() + b"V" for _ in text), text.encode()):
        readable_properties(struct.pack(">HI", 1 << 13, len(table)) + table)


def copies(text: str) -> None:
    message = Message("q", b"", id=text, headers={"n": text})
    theirs = {"x-idempotent-key": text, "x-idempotent-for": text, "x-idempotent-attempt": text, text: text}
    ours = take_ours(dict(theirs), text)
    number_in(theirs, "x-idempotent-attempt")
    came_from(f"q/1/1{text}", "q")
    came_from(text, "q")
    delayed_headers(message, ours, "q", "q")
    dead_letter_headers(message, ours, "q", "q", Result(Outcome.FAILED, error=ValueError(text)))
    returned_headers(message, ours, "q")


def many_headers_of_a_dead_letter(text: str) -> None:
    headers = {str(number): text[:number] for number in range(min(len(text) // 20, 4000))}
    fit_headers(headers, lambda kept: len(kept) < 3)


def lines(text: str) -> None:
    for line in (text, json.dumps({"id": text, "body": text, "headers": {"n": text}}), json.dumps({text: 1})):
        for form in (RecordFormat("s"), RecordFormat("s", "id")):
            with suppress(IdempotentError):
                form.message(Line(1, line.encode()), ["s"])


def outbox(text: str) -> None:
    decoded_headers(encoded_headers({"n": text, "m": {text: [text, text.encode()]}}))
    entry_of(Message("q", text.encode(), id=text, headers={"n": text}), text, None, 0.0)


def urls(text: str) -> None:
    for read in (
        lambda: url_word(f"x://{text}"),
        lambda: server_at(f"amqp://{text}"),
        lambda: bootstrap_of(f"kafka://{text}"),
        lambda: Address.from_url(f"stomp://{text}", None),
        lambda: adapter_from_url(f"{text}://h"),
        lambda: adapter_from_url(f"amqp://h?{text}"),
        lambda: checker_from_url(f"memory://?{text}"),
    ):
        with suppress(IdempotentError):
            read()


def header_key(text: str) -> None:
    """Read a header of HTTP, in quotes and without."""
    for value in (text, f'"{text}"', f'"{text}'):
        with suppress(BadKeyError):
            key_in([value.encode("latin-1", "replace")])


READERS: Final[dict[str, Row]] = {
    "mask": Row(mask, "idempotent.errors"),
    "mask behind an @": Row(lambda text: mask(f"a@{text}"), "idempotent.errors"),
    "without_values": Row(without_values, "idempotent.errors"),
    "brief": Row(brief),
    "described": Row(lambda text: described(KeyError(text))),
    "Failure": Row(lambda text: Failure(text, 1)),
    "EventLog": Row(lambda text: log.warning("event", extra={"error": text, "keys": [text]})),
    "TextFormatter": Row(logged(TextFormatter())),
    "JsonFormatter": Row(logged(JsonFormatter())),
    "StreamHandler on a terminal": Row(on_a_terminal, parts=["\n", "\x1b[", "://", " "]),
    "Message.json": Row(lambda text: [Message("s", (begin + text).encode()).json() for begin in ('"', "")]),
    "Idempotency-Key": Row(header_key, "idempotent.adapters.idempotency_key"),
    "canonical_json": Row(lambda text: canonical_json(text, {text: [text]})),
    "Key": Row(lambda text: KeySpace("s", "g").key(text)),
    "Key of bytes": Row(lambda text: KeySpace("s", "g").key(b"\xff" + text.encode())),
    "KeySpace": Row(lambda text: KeySpace(text, text), parts=[":", "%", "a", "\n"]),
    "key_from_text": Row(lambda text: [key_from_text(each) for each in (text, f"s:g:{text}", f"{text}:g:1")]),
    "consumer_named": Row(
        lambda text: (consumer_named(f"s:{text}"), consumer_named(text), consumer_in(text))
    ),
    "copies": Row(copies, "idempotent.adapters.copies"),
    "fit_headers": Row(many_headers_of_a_dead_letter, parts=["a"]),
    "FrameSplitter": Row(split, "idempotent.adapters.activemq.transport"),
    "STOMP": Row(stomp, "idempotent.adapters.activemq.frames"),
    "STOMP, many headers": Row(many_stomp_headers, parts=["a"]),
    "from_java": Row(lambda text: from_java(b"\xc0\x80" + text.encode())),
    "to_java": Row(lambda text: to_java(b"\0" + text.encode())),
    "place_of": Row(place_of),
    "Kafka": Row(kafka, parts=["a", "1", "/", "%"]),
    "AMQP": Row(amqp),
    "AMQP, undecodable": Row(undecodable_amqp, parts=["a", "\0", "\x01aI"]),
    "lines": Row(lines),
    "outbox": Row(outbox),
    "URLs": Row(urls, parts=["a", "@", ":", "/", "%41", ",", "&", "=", "?", "["]),
    "explained": Row(explained, "idempotent.stores.sql.faults"),
    "MySQL, no table": Row(
        refused(MYSQL, pymysql.err.ProgrammingError, 1146), "idempotent.stores.sql.faults"
    ),
    "MySQL, no right": Row(
        refused(MYSQL, pymysql.err.OperationalError, 1142), "idempotent.stores.sql.grants"
    ),
    "MySQL, no database": Row(
        refused(MYSQL, pymysql.err.OperationalError, 1044), "idempotent.stores.sql.grants"
    ),
    "PostgreSQL, no table": Row(refused(POSTGRESQL, psycopg.errors.UndefinedTable)),
    "PostgreSQL, no right": Row(refused(POSTGRESQL, psycopg.errors.InsufficientPrivilege)),
    "statements of MySQL": Row(ends("mysql"), "idempotent.checkers.sql.watching"),
    "statements of PostgreSQL": Row(ends("postgresql"), "idempotent.checkers.sql.watching"),
    "plain": Row(plain, "idempotent.views.text"),
    "stored_failure": Row(lambda text: stored_failure(text.encode())),
    "key_hash": Row(lambda text: key_hash("c", [text, text.encode()])),
    "mysql_storable": Row(
        lambda text: dialect_for(MYSQL.dialect).storable(
            SimpleNamespace(raw=SimpleNamespace(encoding="utf-8", charset="utf8mb3")), text
        ),
        "idempotent.stores.sql.dialects",
    ),
}
QUICK: Final = {
    "mask",
    "mask behind an @",
    "without_values",
    "JsonFormatter",
    "fit_headers",
    "MySQL, no right",
}
SLOW: Final = [pytest.mark.slow]
# Their patterns match nothing from elsewhere, or what is short.
OWN_WORDS: Final = {
    "idempotent.adapters.kafka.options": "names of topics, checked as a whole",
    "idempotent.adapters.rabbitmq.client": "begins at a word",
    "idempotent.adapters.rabbitmq.topology": "the version of a server, of digits",
    "idempotent.adapters.spark.keys": "types of columns, as Spark writes them",
    "idempotent.adapters.spark.publication": "paths of a job",
    "idempotent.adapters.spark.staging": "paths of a job",
    "idempotent.checkers.redis.checker": "the prefix of the keys",
    "idempotent.cli.configuration": "words of a command",
    "idempotent.cli.options": "words of a command",
    "idempotent.cli.relay": "words of a command",
    "idempotent.migrations.drift": "types of columns, from a server's catalogue",
    "idempotent.migrations.tables": "types of columns, from a server's catalogue",
    "idempotent.outbox.relays.condition": "what `described` has cut",
    "idempotent.processing.handler": "annotations",
    "idempotent.redrive.reading": "at most 300 characters",
    "idempotent.schema": "names of tables",
}


def seconds(read: Callable[[str], object], text: str) -> float:
    """The time of this thread's processor."""
    began = time.thread_time()
    with suppress(IdempotentError, ValueError):
        read(text)
    return time.thread_time() - began


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else SLOW) for name in READERS]
)
def test_a_text_takes_a_time_in_proportion_to_its_length(name):
    read, _, parts = READERS[name]
    for part in parts:
        small, large = (part * (size // len(part)) for size in (SMALL, LARGE))
        for repeat in range(3):  # the collector of garbage may have taken a part of it
            took_s, longer_s = seconds(read, small), seconds(read, large)
            if longer_s <= MOST * max(took_s, NOISE_S):
                break
            if repeat == 2 or longer_s > 1.0:
                pytest.fail(f"{LARGE:,} characters of {part!r}: {longer_s:.2f} s; {SMALL:,}: {took_s:.3f} s")


def test_each_module_with_a_pattern_is_in_the_table():
    known = {row.module for row in READERS.values()} | OWN_WORDS.keys()
    assert set(modules_with_patterns()) - known == set()


def modules_with_patterns() -> Iterator[str]:
    """Those that call a function of `re`."""
    return (module for module, path in product().items() if re.search(r"\bre\.[a-z]+\(", path.read_text()))
