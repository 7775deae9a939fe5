"""The command line. Heavy modules are imported inside the commands, so that --help answers at once."""

from importlib import import_module

from fedframe.cli.app import app, main

# Each adds its commands, and --help shows them in this order.
for _room in (
    "train",
    "inspect",
    "advise",
    "export",
    "gain",
    "reports",
    "papers",
    "measure",
    "compare",
    "bench",
    "federation",
):
    import_module(f"fedframe.cli.{_room}")

__all__ = ["app", "main"]
