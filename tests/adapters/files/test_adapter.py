"""JSON Lines in; what is no message goes to the reject file, and the rest goes on."""

import gzip
import json
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters import FileAdapter, adapter_from_url
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError

SUBJECT = "orders"
ACK = Result(Outcome.PROCESSED)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "orders.jsonl"


def opened(path: Path | str, *subjects: str, **options) -> FileAdapter:
    registry = Registry()
    for subject in subjects or (SUBJECT,):
        registry.consumer(subject, checker=MemoryChecker())(lambda message: None)
    adapter = FileAdapter(path, **options)
    adapter.open(tuple(registry.consumers.values()))
    return adapter


def messages(path: Path, *subjects: str, **options) -> list[Message]:
    adapter = opened(path, *subjects, **options)
    try:
        return [delivery.message for delivery in adapter.receive(1000, 0.0)]
    finally:
        adapter.close()


def rejects(path: Path) -> list[dict]:
    file = path.with_name(path.name + ".rejects.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_an_envelope_becomes_a_message(lines: Path) -> None:
    lines.write_text('{"id": "a", "subject": "orders", "headers": {"x": 1}, "body": "hällo"}\n')
    (message,) = messages(lines)
    assert (message.id, message.subject, dict(message.headers)) == ("a", "orders", {"x": 1})
    assert message.body == "hällo".encode()
    assert message.position == 1


def test_a_body_that_is_no_string_is_json_and_a_number_is_an_id(lines: Path) -> None:
    lines.write_text('{"id": 17, "body": {"total": [1, 2]}}\n{"id": 18}\n')
    first, second = messages(lines)
    assert (first.id, first.json()) == ("17", {"total": [1, 2]})
    assert (second.id, second.body) == ("18", b"")


def test_a_body_of_null_is_a_tombstone_and_a_missing_one_is_empty(lines: Path) -> None:
    lines.write_text('{"id": 1, "body": null}\n{"id": 2}\n{"id": 3, "body": ""}\n')
    assert [message.body for message in messages(lines)] == [None, b"", b""]


def test_a_line_may_have_the_key_of_a_record(lines: Path) -> None:
    lines.write_text(
        '{"id": 1, "key": "k\u00e4se"}\n{"id": 2, "key": ""}\n{"id": 3, "key": null}\n{"id": 4}\n'
    )
    assert [message.key for message in messages(lines)] == ["k\u00e4se".encode(), b"", None, None]


def test_with_id_field_a_line_is_the_body_byte_by_byte(lines: Path) -> None:
    lines.write_bytes(b'\xef\xbb\xbf{"order": 5,  "total": 1.10}\r\n\r\n{"total":3}')
    first, second = messages(lines, id_field="order")
    assert (first.id, first.body) == ("5", b'{"order": 5,  "total": 1.10}')
    assert (second.id, second.position) == (None, 3)


MALFORMED = {
    b"{nonsense": "not JSON",
    b"[1]": "not a JSON object but an array",
    b'{"id": "a", "body": "\xff"}': "not UTF-8: byte 22",
    b'{"id": 1.5}': "id must be a string or a whole number, not a number",
    b'{"id": true}': "not true or false",
    b'{"id": "a", "headers": [1]}': "headers must be an object, not an array",
    b'{"id": "a", "key": 7}': "key must be a string, not a number",
    b'{"id": "a", "key": "\\ud800"}': "half of a surrogate pair",
    b'{"order": 5}': "unknown fields: 'order'",
    b'{"id": "a", "body": {"n": NaN}}': "NaN is not in JSON",
    b'{"id": "\\ud800"}': "half of a surrogate pair",
    b'{"id": "a", "body": "\\ud800"}': "half of a surrogate pair",
    b'{"id": "a", "body": "' + b"x" * 500 + b'"}': "longer than 400 bytes",
    b"[" * 300: "not JSON",
    b'{"id": "a", "subject": 5}': "no subject; expected are orders",
}


@pytest.mark.parametrize("text", MALFORMED, ids=list(MALFORMED.values()))
def test_a_malformed_line_is_rejected_with_its_place_and_reason_and_the_rest_goes_on(
    lines: Path, text: bytes
) -> None:
    lines.write_bytes(b'{"id": "before"}\n' + text + b'\n{"id": "after"}\n')
    assert [message.id for message in messages(lines, max_line_bytes=400)] == ["before", "after"]
    (reject,) = rejects(lines)
    assert (reject["file"], reject["line"], reject["kind"]) == (str(lines), 2, "malformed")
    assert MALFORMED[text] in reject["reason"]
    assert reject["text"].encode()[:20] == text.decode("utf-8", "backslashreplace").encode()[:20]


def test_a_line_without_subject_needs_one_where_there_are_several(lines: Path) -> None:
    lines.write_text('{"id": 1}\n{"id": 2, "subject": "b"}\n')
    assert [message.id for message in messages(lines, "a", "b")] == ["2"]
    assert [message.subject for message in messages(lines, "a", "b", subject="a")] == ["a", "b"]


def test_a_dead_letter_is_in_the_reject_file_before_it_counts_as_settled(lines: Path) -> None:
    lines.write_text('{"id": 1}\n')
    adapter = opened(lines)
    (delivery,) = adapter.receive(1, 0.0)
    adapter.settle(delivery, Result(Outcome.DEAD, error=ValueError("no such order")))
    (reject,) = rejects(lines)
    assert (reject["line"], reject["kind"], reject["reason"]) == (1, "dead", "ValueError: no such order")
    assert reject["text"] == '{"id": 1}'
    adapter.close()


def test_where_rejects_cannot_be_written_nothing_is_settled(lines: Path, tmp_path: Path) -> None:
    lines.write_text('{"id": 1}\n')
    adapter = opened(lines, rejects=tmp_path / "missing" / "rejects.jsonl")
    (delivery,) = adapter.receive(1, 0.0)
    with pytest.raises(AdapterError, match="cannot write rejects to"):
        adapter.settle(delivery, Result(Outcome.DEAD))
    assert adapter.counts.waiting == 1
    adapter.close()


def test_a_failed_message_comes_again_after_its_delay_and_the_file_is_not_finished_before(
    lines: Path,
) -> None:
    now = [100.0]
    lines.write_text('{"id": 1}\n{"id": 2}\n')
    adapter = opened(lines, clock=lambda: now[0])
    one, two = adapter.receive(10, 0.0)
    adapter.settle(two, ACK)
    adapter.settle(one, Result(Outcome.FAILED, retry_after_s=5.0))
    assert adapter.receive(10, 0.0) == []
    assert not adapter.finished
    now[0] += 5.1
    (again,) = adapter.receive(10, 0.0)
    assert (again.message.id, again.message.redelivered) == ("1", True)
    adapter.settle(again, ACK)
    assert adapter.receive(10, 0.0) == []
    assert adapter.finished
    adapter.settle(again, ACK)
    assert adapter.stale_settlements == 1
    adapter.close()


def test_a_requeued_message_comes_again(lines: Path) -> None:
    lines.write_text('{"id": 1}\n')
    adapter = opened(lines)
    (delivery,) = adapter.receive(10, 0.0)
    adapter.requeue(delivery)
    (again,) = adapter.receive(10, 0.0)
    assert again.message.redelivered
    adapter.close()


def test_a_compressed_file_reads_the_same_and_a_damaged_one_says_after_which_line(tmp_path: Path) -> None:
    content = b"".join(b'{"id": %d}\n' % number for number in range(5000))
    path = tmp_path / "orders.jsonl.gz"
    path.write_bytes(gzip.compress(content))
    adapter = opened(path)
    assert len(adapter.receive(10_000, 0.0)) == 5000
    assert adapter.counts.bytes_total == path.stat().st_size
    adapter.close()

    path.write_bytes(gzip.compress(content)[:-20])
    adapter = opened(path)
    with pytest.raises(AdapterError, match=r"damaged after line \d+"):
        adapter.receive(10_000, 0.0)
    adapter.close()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"cannot read .*nowhere.jsonl: No such file or directory"):
        opened(tmp_path / "nowhere.jsonl")


def test_nothing_can_be_sent_to_a_file(lines: Path) -> None:
    with pytest.raises(AdapterError, match="only be read"):
        FileAdapter(lines).publish(Message(SUBJECT))


def test_progress_reaches_the_total(lines: Path) -> None:
    lines.write_text("".join(f'{{"id": {number}}}\n' for number in range(1000)))
    adapter = opened(lines)
    adapter.receive(500, 0.0)
    half = adapter.counts
    assert half.bytes_total == lines.stat().st_size
    assert 0.4 < half.bytes_read / half.bytes_total < 0.6
    adapter.receive(1000, 0.0)
    assert adapter.counts.bytes_read == lines.stat().st_size
    adapter.close()


def test_a_file_of_nothing_but_nonsense_still_lets_the_worker_look_up_in_between(lines: Path) -> None:
    lines.write_text("nonsense\n" * 2500)
    adapter = opened(lines)
    calls = 0
    started = time.monotonic()
    while not adapter.finished:
        assert adapter.receive(10, 30.0) == []
        calls += 1
    assert calls == 3
    assert time.monotonic() - started < 25
    assert adapter.counts.malformed == 2500
    adapter.close()


@pytest.mark.slow
def test_memory_stays_flat_on_a_big_file(lines: Path) -> None:
    registry = Registry()
    registry.consumer(SUBJECT, checker=MemoryChecker(max_keys=100))(lambda message: None)
    with lines.open("w") as file:
        for number in range(8_000):
            file.write(f'{{"id": {number}, "body": "{"x" * 1000}"}}\n')
    tracemalloc.start()
    try:
        summary = Worker(registry, FileAdapter(lines), batch_size=50).run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert summary[Outcome.PROCESSED] == 8_000
    assert peak < 2_500_000, "less than a third of the file"


PROGRAM = """
import sys
from idempotent import Registry, Worker
from idempotent.adapters import adapter_from_url
from idempotent.checkers import MemoryChecker

registry = Registry()
registry.consumer("orders", checker=MemoryChecker())(lambda m: print(m.id, flush=True))
adapter = adapter_from_url(sys.argv[1], rejects=sys.argv[2])
print(Worker(registry, adapter).run().settled, adapter.counts.malformed, flush=True)
"""


@pytest.mark.parametrize("url", ["-", "file://-"])
def test_standard_input_is_read_as_it_comes_and_ends_with_its_writer(url: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, url, str(tmp_path / "rejects")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for number in ("1", "2"):
            child.stdin.write(f'{{"id": {number}}}\n')
            child.stdin.flush()
            assert child.stdout.readline().strip() == number  # before the next line is there
        child.stdin.write("nonsense\n")
        child.stdin.close()
        assert child.stdout.readline().strip() == "2 1"
        assert child.wait(150) == 0


def test_a_worker_waiting_for_standard_input_obeys_sigterm(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, "-", str(tmp_path / "rejects")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write('{"id": 1}\n')
        child.stdin.flush()
        child.stdout.readline()
        child.terminate()
        _, errors = child.communicate(timeout=150)
        assert (child.returncode, errors) == (0, "")


def test_a_file_url_has_options_and_may_be_relative(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lines.parent)
    for url in (f"file://{lines}", f"file://localhost{lines}", "file://orders.jsonl"):
        adapter = adapter_from_url(f"{url}?id_field=order&max_line_bytes=10")
        assert isinstance(adapter, FileAdapter)
        assert Path(adapter.path).parent.samefile(lines.parent)
    with pytest.raises(ConfigurationError, match="unknown option 'field'"):
        adapter_from_url("file:///x?field=order")
