"""The documents of the suite `documents`, and vectors for them: the same for all contenders."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

DIMENSION = 256
EDIT = "This sentence was put in afterwards, and nothing else has been changed. "

_SENTENCE = (6, 22)
_PARAGRAPH = (3, 7)
_WORDS = """
the of and to in that it is was for on are as with they be at one have this from by had not
but what all were when we there can an your which their said if do will each about how up out
them then she many some so these would other into has more her two like him see time could no
make than first been its who now people my made over did down only way find use may water long
little very after words called just where most know get through back much before go good new
write our used me man too any day same right look think also around another came come work
three word must because does part even place well such here take why things help put years
different away again off went old number great tell men say small every found still between
name should home big give air line set own under read last never us left end along while might
next sound below saw something thought both few those always looked show large often together
asked house world going want school important until form food keep children feet land side
without boy once animals life enough took sometimes four head above kind began almost live
page got earth need far hand high year mother light parts country father let night following
picture being study second eyes soon times story boys since white days ever paper hard near
sentence better best across during today others however sure means knew try told young miles
sun ways thing whole hear example heard several change answer room sea against top turned
learn point city play toward five using himself usually insurance regulation department
certificate requirements manufacturer temperature responsibility documentation
""".split()  # noqa: SIM905


def text(number: int, size: int) -> str:
    """A document of about so many characters; the same number gives the same one."""
    chance = random.Random(number)  # noqa: S311
    return "\n\n".join(_paragraphs(chance, size))


def edited(original: str) -> str:
    """The text with a sentence more, in its middle."""
    middle = original.index(". ", len(original) // 2) + 2
    return original[:middle] + EDIT + original[middle:]


class Stub:
    """A model that takes no time of its own, or a given one for each call."""

    def __init__(self, sleep_s: float = 0) -> None:
        self._sleep_s = sleep_s
        self.texts = 0

    def __call__(self, texts: list[str]) -> Any:
        """A row for each text, of length 1, by its hash."""
        self.texts += len(texts)
        time.sleep(self._sleep_s)
        drawn = b"".join(hashlib.shake_128(text.encode()).digest(DIMENSION) for text in texts)
        rows = np.frombuffer(drawn, np.int8).reshape(-1, DIMENSION).astype(np.float32) + 0.5
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _paragraphs(chance: random.Random, size: int) -> Iterator[str]:
    while size > 0:
        sentences = (_sentence(chance) for _ in range(chance.randint(*_PARAGRAPH)))
        paragraph = " ".join(sentences)
        size -= len(paragraph)
        yield paragraph


def _sentence(chance: random.Random) -> str:
    words = chance.choices(_WORDS, k=chance.randint(*_SENTENCE))
    return f"{' '.join(words).capitalize()}."
