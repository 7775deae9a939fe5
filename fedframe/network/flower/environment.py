"""Flower without surprises: nothing calls home, nothing is installed at run time, and a missing extra is one sentence.

Import this before anything of Flower: it reads these variables when it is imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
from pathlib import Path

from fedframe.errors import SettingError

FLOWER = "1.41.0"  # parts of Flower that are not documented are used, and may be others in another version
LOOPBACK = "127.0.0.1,localhost"  # a proxy of the network is not for talks within a machine
CALM = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray will do by itself one day, and warns of until then
    # torch with several threads per process is many times slower as soon as processes share the cores.
    "OMP_NUM_THREADS": "1",
}


def require_packages(*modules: str, extra: str = "flower") -> None:
    """Set the variables here, and say what to install if something is missing."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SettingError(f"This needs {', '.join(missing)}; install it with: pip install 'fedframe[{extra}]'.")
    found = importlib.metadata.version("flwr")
    if found != FLOWER:
        raise SettingError(
            f"This needs flwr {FLOWER}, and {found} is installed; install it with: pip install 'fedframe[{extra}]'."
        )
    os.environ.update({name: value for name, value in CALM.items() if name != "OMP_NUM_THREADS"})
    os.environ["NO_PROXY"] = no_proxy(os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "")
    os.environ.pop("no_proxy", None)  # of the two spellings the other would win


def no_proxy(given: str) -> str:
    """What is not reached through a proxy: what the user says, and this machine."""
    return given if LOOPBACK in given or given == "*" else ",".join(filter(None, (given, LOOPBACK)))


def quiet() -> None:
    """Keep Flower's own log off a screen that is ours; warnings and errors of it stay."""
    for name in ("flwr", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


def environment(home: Path) -> dict[str, str]:
    """The environment of a Flower process that keeps its own files under `home`."""
    return {**os.environ, **CALM, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}
