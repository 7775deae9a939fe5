"""Which devices a run computes on: read, checked and counted without touching a GPU in this process.

Children of a process that has used CUDA cannot use it. So devices are counted in a short-lived child, and where workers
train on GPUs, they alone ever put anything there.
"""

from __future__ import annotations

import multiprocessing

import torch

from fedframe.errors import SettingError


def count_devices(kind: str) -> int:
    """How many devices of a kind this machine has."""
    if kind == "cuda":
        built: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
        return count_in_child() if built and can_fork() else torch.cuda.device_count()
    return {"cpu": 1, "mps": int(torch.backends.mps.is_available())}.get(kind, 0)


def count_in_child() -> int:
    """How many GPUs CUDA sees, asked in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=lambda: there.send(torch.cuda.device_count()), daemon=True)
    process.start()
    there.close()
    try:
        return int(here.recv())
    except EOFError:  # the driver has ended it
        return 0
    finally:
        process.join()
        here.close()


def can_fork() -> bool:
    """Whether processes forked from this one can use a GPU: this one must not have used it yet."""
    forks = "fork" in multiprocessing.get_all_start_methods()
    return forks and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def device_names(device: str) -> list[str]:
    """The devices that a setting names, one by one."""
    return [name.strip() for name in device.split(",")]


def resolve_device(device: str) -> str:
    """What `auto` stands for here: every GPU, or Apple's, or the processor."""
    if device != "auto":
        return device
    gpus = count_devices("cuda")
    return ",".join(f"cuda:{number}" for number in range(gpus)) or ("mps" if count_devices("mps") else "cpu")


def check_device(device: str, several: bool = False) -> None:
    """Refuse devices that this machine does not have, and more than one where one is used."""
    names = device_names(device)
    if len(names) > 1 and not several:
        raise SettingError(f"device = {device!r} names {len(names)} devices where one is used; use {names[0]}.")
    kinds = {name.partition(":")[0] for name in names}
    if len(kinds) > 1:
        raise SettingError(f"device = {device!r} mixes kinds of devices; use one kind, as in cuda:0,cuda:1.")
    kind = kinds.pop()
    count = count_devices(kind)
    if not count:
        raise SettingError(f"device = {device!r} is not available on this machine; use cpu.")
    for name in names:
        _, colon, number = name.partition(":")
        if colon and not (number.isdecimal() and int(number) < count):
            works = kind if count == 1 else f"{kind}, or a number from {kind}:0 to {kind}:{count - 1}"
            which = f": {name}" if len(names) > 1 else ""
            raise SettingError(f"device = {device!r}{which} is not available on this machine; use {works}.")
        if not colon and len(names) > 1:
            raise SettingError(f"device = {device!r}: give every device its number, as in {kind}:0,{kind}:1.")
    if len(set(names)) < len(names):
        raise SettingError(f"device = {device!r} names a device twice; use workers for several processes on one.")
