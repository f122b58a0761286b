"""Clients that are to be cut off connect to a proxy, and stay with it."""

from __future__ import annotations

import struct

import pytest

from tests.torture.addresses import address_of, behind
from tests.torture.kafka_addresses import KafkaAddresses


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://me:secret@rabbit/%2F?prefetch=5", "amqp://me:secret@127.0.0.1:7/%2F?prefetch=5"),
        ("kafka://kafka:9093", "kafka://127.0.0.1:7"),
        ("stomp://mq:61614", "stomp://127.0.0.1:7"),
        ("redis://:p@ss@cache:6380/2", "redis://:p@ss@127.0.0.1:7/2"),
        ("transactional+mysql+pymysql://u:p@db/x", "transactional+mysql+pymysql://u:p@127.0.0.1:7/x"),
        ("postgresql+psycopg://u@db/x", "postgresql+psycopg://u@127.0.0.1:7/x?sslmode=disable"),
        (
            "offsets+postgresql+psycopg://u@db/x?sslmode=prefer&a=b",
            "offsets+postgresql+psycopg://u@127.0.0.1:7/x?sslmode=prefer&a=b",
        ),
    ],
)
def test_only_the_place_of_a_url_changes(url, expected):
    assert behind(url, 7) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://rabbit", ("rabbit", 5672)),
        ("transactional+postgresql+psycopg://u:p@db:5433/x", ("db", 5433)),
        ("kafka://a:1,b:2", None),
        ("amqps://rabbit", None),
        ("rediss://cache", None),
        ("stomp+ssl://mq", None),
        ("transactional+sqlite:///x.db", None),
        ("unix:///run/redis.sock", None),
    ],
)
def test_a_proxy_stands_before_one_server_that_does_not_encrypt(url, expected):
    assert address_of(url) == expected


def frame(*parts: bytes) -> bytes:
    content = b"".join(parts)
    return struct.pack(">i", len(content)) + content


def old(host: str, port: int) -> bytes:
    return struct.pack(">h", len(host)) + host.encode() + struct.pack(">i", port)


def new(host: str, port: int) -> bytes:
    return bytes([len(host) + 1]) + host.encode() + struct.pack(">i", port)


@pytest.mark.parametrize("form", [old, new])
def test_kafka_names_the_proxy_in_answers_of_any_version(form):
    change = KafkaAddresses(("kafka.example", 9092), ("127.0.0.1", 7))
    answer = frame(b"\0\0\0\1", form("kafka.example", 9092), b"rest")
    assert change(answer) == frame(b"\0\0\0\1", form("127.0.0.1", 7), b"rest")


def test_kafkas_answers_may_come_in_pieces_and_others_stay_as_they_are():
    change = KafkaAddresses(("kafka.example", 9092), ("127.0.0.1", 7))
    answers = frame(old("kafka.example", 9092)) + frame(old("other.example", 9092), b"kafka.example")
    passed = b"".join(change(answers[place : place + 3]) for place in range(0, len(answers), 3))
    assert passed == frame(old("127.0.0.1", 7)) + frame(old("other.example", 9092), b"kafka.example")
