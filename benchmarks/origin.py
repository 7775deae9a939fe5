"""Where a benchmark's figures come from: what every entry of its results names."""

from __future__ import annotations

import platform
import shlex
import sys
from pathlib import Path

import torch

from fedframe.experiments.bench.record import source_commit
from fedframe.models.feature_maps import has_bfloat16_units
from fedframe.util.version import __version__

PLACES = ("--data-dir", "--results")  # options that say where files are on one machine, and nothing about the figures


def origin() -> dict[str, object]:
    """Version, commit, torch, and what of the processor matters to figures and costs."""
    processor = f"{platform.machine()}, {'with' if has_bfloat16_units() else 'without'} units for bfloat16"
    return {"version": __version__, "commit": source_commit(), "torch": torch.__version__, "processor": processor}


def command_line() -> str:
    """The command that this process is, without places on this machine."""
    words, left = [], iter(sys.argv[1:])
    for word in left:
        if word in PLACES:
            next(left, None)
        elif not word.startswith(tuple(f"{name}=" for name in PLACES)):
            words.append(word)
    return shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *words])
