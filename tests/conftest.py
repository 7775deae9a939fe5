"""What all tests need before they start."""

import os
import signal
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background lets them ignore Ctrl-C, and their children with them; some tests are
# about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# torch's threads spin while they wait for each other. With more threads than free cores that multiplies the time of a
# test by up to five, so here they sleep. Set before anything imports torch; processes that tests start inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Ray ends its processes when other programs have filled the machine's memory; no test may depend on those.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")

# Code that tests run is allowed in a list of their own, not in that of whoever runs them.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="fedframe-tests-")

# No test may fail because the machine is busy: an example may take as long as it takes.
settings.register_profile("fedframe", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedframe")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the longest tests come first, those that start a federation before all: no worker waits at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (item.path not in slow, item.path.parent.name not in ("federation", "network")))
