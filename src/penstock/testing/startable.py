"""What is started and closed by a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Startable"]


class Startable(ABC):
    """Started on entry and closed on exit, and also if the start itself fails halfway."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
