"""A call of every script in a state that is in use, by engine."""

from .coordination import COORDINATION, RUNS
from .kit import Case, Engine
from .queues import QUEUES
from .topics import TOPICS
from .windows import WINDOWS

__all__ = ["ENGINES", "Case", "Engine"]

ENGINES = (QUEUES, TOPICS, WINDOWS, RUNS, COORDINATION)
