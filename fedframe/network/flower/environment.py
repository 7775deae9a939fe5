"""The environment of Flower: nothing calls home, nothing is installed at run time, and a missing extra is one sentence.

Import this before anything of Flower, which reads these variables when it is imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
from pathlib import Path

from fedframe.errors import SettingError

LOOPBACK = "127.0.0.1,localhost"  # connections within this machine use no proxy
PIECE_BYTES = 1 << 19  # of a message: what a line must pass in a quarter of a minute
VARIABLES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # A node gives up on a piece of a message after 30 seconds: on a line of 1 Mbit/s, with two pieces on their way at a
    # time, Flower's 5 MB never arrive.
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(PIECE_BYTES),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's own 15 starves the nodes as soon as anything else runs beside them
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default, of whose absence it warns
    # torch with several threads per process is many times slower as soon as processes share the cores.
    "OMP_NUM_THREADS": "1",
}


def require_packages(*modules: str, extra: str = "flower") -> None:
    """Set the variables in this process; if a package is missing, the error says what to install."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SettingError(f"This needs {', '.join(missing)}; install it with: pip install 'fedframe[{extra}]'.")
    found, wanted = importlib.metadata.version("flwr"), pinned_version()
    if found != wanted:
        raise SettingError(
            f"This needs flwr {wanted}, and {found} is installed; install it with: pip install 'fedframe[{extra}]'."
        )
    os.environ.update({name: value for name, value in VARIABLES.items() if name != "OMP_NUM_THREADS"})
    os.environ["NO_PROXY"] = no_proxy(os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "")
    os.environ.pop("no_proxy", None)  # of the two spellings the lower-case one would win


def pinned_version() -> str:
    """The version of Flower that pyproject.toml pins: parts of it that are used are undocumented and may move."""
    lines = importlib.metadata.requires("fedframe") or []
    return next(found[1] for line in lines if (found := re.match(r"flwr==([\w.]+)", line)))


def no_proxy(given: str) -> str:
    """What is not reached through a proxy: what the user lists, and this machine."""
    return given if LOOPBACK in given or given == "*" else ",".join(filter(None, (given, LOOPBACK)))


def quiet_logs() -> None:
    """Keep Flower's own log off the screen, except for warnings and errors."""
    for name in ("flwr", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


def environment(home: Path) -> dict[str, str]:
    """The environment of a Flower process that keeps its own files under `home`."""
    return {**os.environ, **VARIABLES, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}
