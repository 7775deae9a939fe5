"""`freeze`: which part of a net keeps the weights that it starts with.

`backbone` is all of the net in front of the classifier; N the first N of its children, in the order in which its class
names them (`net.named_children()`), descending where a net has a single child. A frozen module is in evaluation mode in
training too: BatchNorm keeps its statistics, and nothing happens at random.
"""

from __future__ import annotations

from torch import nn

from fedframe.errors import SettingError


def check_freeze(text: str) -> str:
    """The setting, if it can be read."""
    if text not in ("none", "backbone") and not (text.isdecimal() and int(text) > 0):
        raise SettingError(f"freeze = {text!r} cannot be read; use none, backbone, or how many children of the net: 2.")
    return text


def frozen_modules(net: nn.Module, freeze: str) -> tuple[str, ...]:
    """Paths below the net of the modules to freeze; "" is the net itself."""
    check_freeze(freeze)
    if freeze == "none":
        return ()
    if not any(True for _ in net.parameters()):
        raise SettingError(f"freeze = {freeze!r}: the net has no weights to freeze; use none.")
    if freeze == "backbone":
        return ("",)
    path, children = "", list(net.named_children())
    while len(children) == 1:
        path = f"{path}{children[0][0]}."
        children = list(children[0][1].named_children())
    if int(freeze) >= len(children):
        names = ", ".join(name for name, _ in children) or "none"
        raise SettingError(
            f"freeze = {freeze}: the net has {len(children)} children ({names}), of which one at least must learn; use "
            f"{'a number below ' + str(len(children)) + ', or ' if len(children) > 1 else ''}backbone."
        )
    return tuple(f"{path}{name}" for name, _ in children[: int(freeze)])
