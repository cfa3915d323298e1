"""What the fault tests share."""

from tests.kit.crews.fixtures import (  # noqa: F401  fixtures
    clock,
    launcher,
    make_crew,
    make_queue_crew,
    make_site,
    make_window_crew,
    server,
)
