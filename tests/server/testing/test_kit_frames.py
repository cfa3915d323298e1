"""The kit finds the borders between requests and between replies, however they are split."""

from __future__ import annotations

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.testing.resp import REFUSALS, FrameSplitter, pack

FRAMES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":42\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$4\r\n\r\n\r\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n*1\r\n$1\r\na\r\n:1\r\n",
    b"%1\r\n+key\r\n*2\r\n:1\r\n:2\r\n",
    b"~1\r\n_\r\n",
    b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
    b"|1\r\n+ttl\r\n:3\r\n$1\r\nv\r\n",
    b"=7\r\ntxt:a\r\n\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"(123456789012345678901234567890\r\n",
    b"PING\r\n",
    b"\r\n",
    b"*no number\r\n",
    pack("SET", "kéy", b"\xff\r\n", 7),
]


@pytest.mark.parametrize("frame", FRAMES, ids=repr)
def test_a_frame_comes_out_whole_when_its_last_byte_is_in(frame: bytes):
    splitter = FrameSplitter()
    for position in range(len(frame) - 1):
        assert splitter.feed(frame[position : position + 1]) == []
    assert splitter.feed(frame[-1:]) == [frame]


@given(st.lists(st.sampled_from(FRAMES), max_size=8), st.data())
def test_glued_frames_come_apart_wherever_the_stream_is_cut(frames: list[bytes], data):
    stream, splitter, found = b"".join(frames), FrameSplitter(), []
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    assert found == frames
    assert splitter.rest() == b""


def test_the_rest_is_what_is_not_complete():
    splitter = FrameSplitter()
    assert splitter.feed(b"+OK\r\n$5\r\nhal") == [b"+OK\r\n"]
    assert splitter.rest() == b"$5\r\nhal"
    assert splitter.feed(b":1\r\n") == [b":1\r\n"]


@pytest.mark.parametrize("code", REFUSALS)
def test_each_refusal_is_an_error_line_of_its_code(code: str):
    reader = hiredis.Reader()
    reader.feed(REFUSALS[code].encode() + b"\r\n")
    error = reader.gets()
    assert isinstance(error, hiredis.ReplyError)
    assert str(error).split()[0] == code
