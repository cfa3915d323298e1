import subprocess
import sys
import tracemalloc

import pytest
import zstandard

from penstock.errors import DecodeError, InflationRefused
from penstock.redis.codec.zstd import MAGIC, Zstd

MIB = 1024 * 1024
BLOCK = 128 * 1024
LIMIT = 64 * MIB
zstd = Zstd(LIMIT)


def zeros(blocks: int, declared: int | None = None, *, window_log: int = 17) -> bytes:
    """Write a frame of zeros by hand: each block of 128 KiB takes 4 bytes."""
    window = bytes([(window_log - 10) << 3])
    size = b"" if declared is None else declared.to_bytes(8, "little")
    header = MAGIC + (b"\x00" if declared is None else b"\xc0") + window + size
    body = [
        ((BLOCK << 3) | (1 << 1) | (number == blocks - 1)).to_bytes(3, "little") + b"\x00"
        for number in range(blocks)
    ]
    return header + b"".join(body)


BOMB_BLOCKS = 256 * MIB // BLOCK
HELLO = zstandard.compress(b"hello" * 1000)
EMPTY = zstandard.compress(b"")
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


def without_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


@pytest.mark.parametrize(
    ("frame", "content"),
    [
        (HELLO, b"hello" * 1000),
        (without_size(b"hello" * 1000), b"hello" * 1000),
        (without_size(b"hello"), b"hello"),
        (EMPTY, b""),
        (without_size(b""), b""),
        (zeros(3, 3 * BLOCK), bytes(3 * BLOCK)),
        (zeros(3), bytes(3 * BLOCK)),
        (zstandard.ZstdCompressor(level=19, write_checksum=True).compress(b"x" * 999), b"x" * 999),
        (Zstd(LIMIT).pack(b"own"), b"own"),
    ],
)
def test_one_whole_frame_is_unpacked(frame: bytes, content: bytes) -> None:
    assert zstd.unpack(frame, frame) == content


def damaged_checksum() -> bytes:
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(b"x" * 999))
    frame[-1] ^= 1
    return bytes(frame)


@pytest.mark.parametrize(
    "frame",
    [
        MAGIC,
        MAGIC + b"hello",
        HELLO[:6],
        HELLO[:-1],
        HELLO + b"x",
        HELLO + HELLO,
        HELLO + SKIPPABLE,
        SKIPPABLE + HELLO,
        EMPTY + b"x",
        EMPTY[:-1],
        without_size(b"hello" * 1000) + b"x",
        without_size(b"hello" * 1000) + HELLO,
        without_size(b"hello" * 1000)[:-1],
        zeros(200) + b"x" * 200,
        damaged_checksum(),
        zeros(3, 3 * BLOCK - 1),
        zeros(3, 3 * BLOCK + 1),
        zeros(3, 60 * MIB),
        zeros(3, window_log=27),
        MAGIC + b"\x23\x07\x00\x00\x00\x05" + HELLO[7:],
    ],
    ids=lambda frame: frame[:12].hex(),
)
def test_anything_but_one_whole_honest_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(DecodeError) as refused:
        zstd.unpack(frame, b"as stored")
    assert not isinstance(refused.value, InflationRefused)
    assert refused.value.raw == b"as stored"


def test_an_unknown_dictionary_is_named() -> None:
    samples = [f"sample {number} of something {number * 7}".encode() for number in range(500)]
    dictionary = zstandard.train_dictionary(2048, samples)
    frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(b"sample 3")
    with pytest.raises(DecodeError, match=f"needs dictionary {dictionary.dict_id()}"):
        zstd.unpack(frame, frame)


@pytest.mark.parametrize(
    ("frame", "peak_allowed"),
    [
        (zeros(BOMB_BLOCKS, 256 * MIB), 64 * 1024),
        (zeros(BOMB_BLOCKS, 2**60), 64 * 1024),
        (zeros(1, 2**64 - 2), 64 * 1024),
        (zeros(3, 60 * MIB), 64 * 1024),
        (zeros(BOMB_BLOCKS), 8 * MIB),
        (zeros(BOMB_BLOCKS, 0), 8 * MIB),
    ],
    ids=[
        "declared",
        "lie of 2^60",
        "largest lie",
        "allowed lie",
        "undeclared",
        "declared as empty",
    ],
)
def test_a_bomb_costs_no_memory(frame: bytes, peak_allowed: int) -> None:
    zstd.unpack(HELLO, HELLO)  # the first call imports and allocates for good
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            zstd.unpack(frame, frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < peak_allowed


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's address space")
@pytest.mark.parametrize("declared", [256 * MIB, None])
def test_a_bomb_is_refused_where_there_is_no_memory_for_it(declared: int | None) -> None:
    program = """
import resource
from pathlib import Path
from penstock.errors import InflationRefused
from penstock.redis.codec.zstd import Zstd

MIB = 1024 * 1024
zstd = Zstd(64 * MIB)
zstd.unpack(zstd.pack(b"warm"), b"")
frame = bytes.fromhex(input())
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 24 * MIB, used + 24 * MIB))
try:
    zstd.unpack(frame, frame)
except InflationRefused:
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=zeros(BOMB_BLOCKS, declared).hex(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "refused\n"


def test_exactly_the_limit_is_unpacked_and_one_byte_more_is_not() -> None:
    small = Zstd(BLOCK)
    assert small.unpack(zeros(1), b"") == bytes(BLOCK)
    assert small.unpack(zeros(1, BLOCK), b"") == bytes(BLOCK)
    assert small.unpack(small.pack(bytes(BLOCK)), b"") == bytes(BLOCK)
    for frame in (zeros(2), zeros(2, 2 * BLOCK), small.pack(bytes(BLOCK + 1))):
        with pytest.raises(InflationRefused, match="refused"):
            small.unpack(frame, frame)


def test_a_frame_larger_than_any_allowed_payload_is_not_looked_at() -> None:
    with pytest.raises(InflationRefused):
        Zstd(1000).unpack(MAGIC + bytes(10_000), b"")
