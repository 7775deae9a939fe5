"""Errors in the code of parts and nets, as one sentence with the file, the line and the hook."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedframe.core.part import Merger, Part
from fedframe.core.part_check import class_location
from fedframe.errors import DivergedError, FedframeError, RunError
from fedframe.util import locate

if TYPE_CHECKING:
    from fedframe.core.client_context import ClientContext

LOSS_ROUNDING = 1e-3  # of the mean size of a batch's losses: how far sums in another order may be apart, generously
CORE = Path(__file__).parent
METHODS = CORE.parent / "methods"


def part_places(error: BaseException) -> list[Path]:
    """The folder of the built-in parts, and the files of all parts whose hooks were running, even if installed."""
    running = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    kinds = {kind for part in running if isinstance(part, Part) for kind in type(part).__mro__}
    files = {getattr(sys.modules.get(kind.__module__), "__file__", None) for kind in kinds if issubclass(kind, Part)}
    return [METHODS, *(Path(file) for file in files if file and not Path(file).is_relative_to(CORE))]


def describe_hook_error(error: BaseException) -> str:
    """The kind and text of an error, and where it was raised if that is in a part's or a user's file."""
    return locate.describe_error(error, part_places(error))


@contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Turn an error that a part's or a user's file has raised into one sentence; others pass as they are."""
    try:
        yield
    except FedframeError:
        raise
    except Exception as error:
        if locate.location(error, part_places(error)) is None:
            raise
        kind = DivergedError if isinstance(error, FloatingPointError) else RunError
        raise kind(f"{where}: {describe_hook_error(error)}") from error


def wrong_return(part: Part, hook: str, value: object, wanted: str) -> RunError:
    """The sentence about a hook that returned something else than it must."""
    found = f"a {type(value).__name__}" if value is not None else "None: is a return missing?"
    if isinstance(value, list | tuple | dict) and not value:
        found = f"an empty {type(value).__name__}"
    return RunError(f"{class_location(type(part))}.{hook} must return {wanted}, and returned {found}")


def call_in_place(part: Part, hook: str, *given: object) -> None:
    """Call a hook that changes what it is given; something returned would be ignored, so it is refused."""
    value = getattr(part, hook)(*given)
    if value is not None:
        raise RunError(
            f"{class_location(type(part))}.{hook} returned a {type(value).__name__}, which nobody would use: change "
            "what the hook is given, and return nothing."
        )


def returned_tensor(value: Tensor, part: Part, hook: str) -> Tensor:
    """What a hook returned, if it is a tensor; a forgotten `return` is named with its hook."""
    if not isinstance(value, Tensor):
        raise wrong_return(part, hook, value, "a tensor")
    return value


def checked_merger(merger: Merger, part: Part) -> Merger:
    """What the hook `merger` returned, if it can be used as one."""
    for method, given in (("add", ("reply", "weight")), ("finish", ())):
        if not callable(getattr(merger, method, None)):
            raise wrong_return(part, "merger", merger, "an object with the methods add(reply, weight) and finish()")
        try:
            inspect.signature(getattr(merger, method)).bind(*given)
        except TypeError:
            where = f"{class_location(type(part))}.merger: {type(merger).__name__}.{method}"
            raise RunError(f"{where} must take ({', '.join(('self', *given))}).") from None
    return merger


def returned_number(value: Tensor, part: Part, hook: str) -> Tensor:
    """What a hook returned, if it is a single number, as a loss must be."""
    if not isinstance(value, Tensor) or value.ndim:
        returned_tensor(value, part, hook)
        raise RunError(
            f"{class_location(type(part))}.{hook} must return a single number (a tensor of shape ()), and returned "
            f"shape {tuple(value.shape)}: is a .mean() missing?"
        )
    return value


def checked_losses(
    losses: Tensor,
    part: Part,
    hook: Literal["row_losses", "round_losses"],
    logits: Tensor,
    labels: Tensor,
    counts: Sequence[int],
    contexts: Sequence[ClientContext],
) -> Tensor:
    """What a hook returned for several clients' batches, if it is one loss per sample and its mean is `loss`.

    Otherwise clients together would minimise something else than each alone. Only the first `counts` samples of every
    client are real. Losses that are not finite pass: the update will be refused, and the hook found.
    """
    where = f"{class_location(type(part))}.{hook}"
    found, wanted = tuple(returned_tensor(losses, part, hook).shape), tuple(logits.shape[:2])
    if found != wanted:
        raise RunError(
            f"{where} must return one loss per sample, shape {wanted} (clients, samples), and returned shape {found}."
        )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a loss that draws must not change what is drawn later
        for number, (count, context) in enumerate(zip(counts, contexts, strict=True)):
            own = losses[number, :count]
            alone = float(part.loss(logits[number, :count], labels[number, :count], context))
            together = float(own.mean())
            if abs(together - alone) > LOSS_ROUNDING * float(own.abs().mean()):
                raise RunError(
                    f"{where} has a mean of {together:.6g} over a batch of client {context.client}, where 'loss' gives "
                    f"{alone:.6g}: clients together would minimise something else than each alone; make them agree."
                )
    return losses
