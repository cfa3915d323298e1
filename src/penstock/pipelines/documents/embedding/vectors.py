"""Rows of numbers as vectors of length 1, in the bytes that the stores take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import DocumentRefused, EmbedderFailed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["unit_vectors", "well_formed"]

_TEXT_SHOWN = 40


def unit_vectors(rows: NDArray[np.floating[Any]], texts: Sequence[str]) -> list[bytes]:
    """Each row, one for each of the texts, as little-endian float32 of length 1.

    EmbedderFailed for what is no number; DocumentRefused for a row that points nowhere: it would be
    equally near to everything, and the same text gets the same row again.
    """
    import numpy as np  # noqa: PLC0415  an extra: not everybody who imports this has it

    wide = rows.astype(np.float64)  # the squares of large numbers do not fit into less
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    if not np.isfinite(lengths).all():
        raise EmbedderFailed("the embedder answered with what is no number", "ERR_EMBEDDER_ANSWER")
    if not lengths.all():
        text = texts[int(np.flatnonzero(lengths == 0)[0])]
        raise DocumentRefused(
            f"the embedder finds nothing in the text {text[:_TEXT_SHOWN]!r}: its vector is zero",
            "ERR_EMBEDDER_REFUSED",
        )
    units = (wide / lengths[:, None]).astype("<f4")
    return [row.tobytes() for row in units]


def well_formed(text: str) -> str:
    """The text without halves of characters, which UTF-8 has no form for."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
