"""The core: parts, methods, the client's and the server's loop, messages, evaluation.

These names are what the author of a method uses; `fedframe` offers them too.
"""

from fedframe.core.aggregation import RunningMean
from fedframe.core.client_context import ClientContext
from fedframe.core.message import Message
from fedframe.core.method import Method
from fedframe.core.model import Model
from fedframe.core.part import ALL_DATA, HeadStage, Merger, ModelSize, Part, State, Upload, WeightedReply
from fedframe.core.scratch import Key
from fedframe.core.server import Server

__all__ = [
    "ALL_DATA",
    "ClientContext",
    "HeadStage",
    "Key",
    "Merger",
    "Message",
    "Method",
    "Model",
    "ModelSize",
    "Part",
    "RunningMean",
    "Server",
    "State",
    "Upload",
    "WeightedReply",
]
