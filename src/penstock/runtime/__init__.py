"""The worker process: lifecycle, signals, duties, supervision, logs."""

from penstock.runtime.duty import Duty
from penstock.runtime.logs import configure
from penstock.runtime.process import run_process
from penstock.runtime.progress import LoopProgress
from penstock.runtime.service import Readiness, Service
from penstock.runtime.watchdog import Watchdog
from penstock.runtime.worker import Worker

__all__ = [
    "Duty",
    "LoopProgress",
    "Readiness",
    "Service",
    "Watchdog",
    "Worker",
    "configure",
    "run_process",
]
