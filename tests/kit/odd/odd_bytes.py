"""Bytes that no program of ours has written: random, cut, changed, too large, too deep.

The generators take a `random.Random`, so that a failure is repeated with its number.
"""

import json
from random import Random

_NUMBERS = (
    *(b"9" * 20, b"9" * 400, b"9" * 5_000, b"-" + b"9" * 5_000, b"0" * 5_000),
    *(b"1e999", b"-1e999", b"1e308", b"1.5", b"-0", b"0x10", b" 7", b"1_0", b"+5", b"nan"),
    *(b"inf", b"-inf", "١٢".encode(), b"18446744073709551616", b"9223372036854775808"),
)
_SCORES = (b"inf", b"-inf", b"1.7e+308", b"-1.7e+308", b"-0", b"5", b"1700000000000.5")
_KNOWN = (
    *(b"", b"\x00", b"\xff", b"\xff\xfe", b"{", b"[", b'"', b'"\\ud800"', b'{"a":"\\ud800"}'),
    *(b"\xed\xa0\x80", b"[" * 2_000, b'{"a":' * 2_000, b"(\xb5/\xfd", b"(\xb5/\xfdgarbage"),
    *(b"NaN", b"Infinity", b'{"limit":1e999}', b'{"attempts":1e308}', b'{"limit":null}', b"[1]"),
    *("\u2028\u202e\x1b[31m".encode(), b"a" * 600, b"%FF", b"%", b"%ED%A0%80", b"\x1f"),
)
_TEXTS = ("", "a", "é", "\x1f", "\ud800", "nan", "a" * 600)
_NAMES = ("attempts", "first_ms", "last_ms", "limit", "pid", "name", "key", "load", "x")


def odd_number(rng: Random) -> bytes:
    """Return text that may be taken for a number."""
    if rng.random() < 0.5:
        return rng.choice(_NUMBERS)
    return b"%d" % rng.randint(-(2 ** rng.randint(1, 70)), 2 ** rng.randint(1, 70))


def odd_score(rng: Random) -> bytes:
    """Return a score of a sorted set, as the server tells it: any number but NaN."""
    if rng.random() < 0.5:
        return rng.choice(_SCORES)
    return repr(rng.uniform(-1, 1) * 10.0 ** rng.randint(-5, 300)).encode()


def _value(rng: Random, depth: int = 0) -> object:
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind <= 2:
        return rng.randint(-(2 ** rng.randint(1, 70)), 2 ** rng.randint(1, 70))
    if kind == 3:
        return rng.choice((0.5, -1e308, 1e308, float("nan"), float("inf")))
    if kind <= 5:
        return rng.choice(_TEXTS)
    if kind == 6:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(_NAMES): _value(rng, depth + 1) for _ in range(rng.randrange(4))}


def changed(rng: Random, data: bytes) -> bytes:
    """Return `data` with a few bytes replaced, removed or added."""
    text = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(text) + 1)
        text[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(text)


def odd(rng: Random, like: bytes = b"") -> bytes:
    """Return anything; often something that resembles `like`, or JSON."""
    match rng.randrange(6):
        case 0:
            return rng.randbytes(rng.randrange(40))
        case 1:
            return rng.choice(_KNOWN)
        case 2:
            return odd_number(rng)
        case 3 if like:
            return changed(rng, like)
        case 4 if like:  # one of its numbers or texts is another
            spot = rng.randrange(len(like))
            return like[:spot] + odd_number(rng) + like[spot + rng.randrange(4) :]
        case _:
            text = json.dumps(_value(rng)).encode()
            return text if rng.random() < 0.5 else changed(rng, text)


def odd_pairs(rng: Random, names: tuple[str, ...], like: bytes = b"") -> list[bytes]:
    """Return names and values of a hash or an entry, known names among them."""
    found = {
        rng.choice(names).encode() if rng.random() < 0.8 else odd(rng): odd(rng, like)
        for _ in range(rng.randrange(6))
    }
    return [part for item in found.items() for part in item]
