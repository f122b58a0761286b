"""Frames end where STOMP says, however the bytes arrive."""

import pytest

from idempotent.adapters.activemq.transport import FrameSplitter

FRAMES = [
    b"CONNECTED\nversion:1.2\n\n",
    b"MESSAGE\ncontent-length:4\nk:a\0b\n\n\0\n\n\0",
    b"MESSAGE\r\nk:v\r\n\r\ntext",
    b"RECEIPT\nreceipt-id:1\ncontent-length:0\n\n",
]
STREAM = b"\n\r\n" + b"\0\n\n".join(FRAMES) + b"\0"


@pytest.mark.parametrize("size", [1, 2, 7, len(STREAM)])
def test_frames_come_out_whole_however_they_came_in(size):
    splitter, found = FrameSplitter(), []
    for start in range(0, len(STREAM), size):
        splitter.add(STREAM[start : start + size])
        found += splitter
    assert found == FRAMES


def test_heartbeats_are_no_frames():
    splitter = FrameSplitter()
    splitter.add(b"\n\r\n\n")
    assert list(splitter) == []


def test_an_unfinished_frame_waits_for_its_rest():
    splitter = FrameSplitter()
    splitter.add(b"MESSAGE\ncontent-length:3\n\nab")
    assert list(splitter) == []
    splitter.add(b"c")
    assert list(splitter) == []
    splitter.add(b"\0")
    assert list(splitter) == [b"MESSAGE\ncontent-length:3\n\nabc"]
