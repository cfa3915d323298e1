"""A call of every script in a state that is in use, by engine."""

from .kit import Case, Engine
from .queues import QUEUES
from .topics import TOPICS

__all__ = ["ENGINES", "Case", "Engine"]

ENGINES = (QUEUES, TOPICS)
