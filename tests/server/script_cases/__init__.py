"""A call of every script in a state that is in use, by engine."""

from .kit import Case, Engine
from .queues import QUEUES

__all__ = ["ENGINES", "Case", "Engine"]

ENGINES = (QUEUES,)
