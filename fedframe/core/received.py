"""What a client has received: a name that was not sent is refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedframe.core.declared import did_you_mean, running_part
from fedframe.core.server_view import ServerView

if TYPE_CHECKING:
    from fedframe.core.job import Job


class Received(dict[str, Tensor]):
    """The tensors of a request by name."""

    def __init__(self, job: Job, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.job = job

    def __missing__(self, name: str) -> Tensor:
        who = f"{running_part(name)} reads {str(name)!r} in context.received"
        if name in kept_names(self.job):
            raise NameError(
                f"{who}, and the server keeps it without sending it; write {str(name)!r}: State(..., broadcast=True) "
                "in 'server_state'"
            )
        raise NameError(
            f"{who}, which was not sent; {did_you_mean(name, self)}return it from the part's 'server_state': "
            f"{{{str(name)!r}: State(..., broadcast=True)}}"
        )


def kept_names(job: Job) -> set[str]:
    """The names of what parts keep on the server; none where that cannot be told without the server's data."""
    found: set[str] = set()
    view: Any = ServerView(job, lambda text: None)
    for part in job.method.parts:
        try:
            found |= part.server_state(view).keys()
        except Exception:  # this is for the text of an error only
            continue
    return found
