"""The ClientApp of a simulation: Ray's processes import it by name, keep each node's data, and answer requests."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedframe.network.flower.records import from_record, to_record
from fedframe.network.local_nodes import answer, load_node_runtime
from fedframe.network.node import NodeRuntime

WHERE = "where"  # the record beside a payload: the folder of all nodes, which the simulated ones share
app = ClientApp()


@app.query()
def identify(message: Message, context: Context) -> Message:
    """Say which of the simulated nodes this is."""
    number = int(context.node_config["partition-id"])
    return Message(RecordDict({WHERE: ConfigRecord({"number": number})}), reply_to=message)


@app.train()
def handle(message: Message, context: Context) -> Message:
    """Answer a request."""
    folder = Path(str(message.content.config_records[WHERE]["folder"]))
    payload = from_record(RecordDict({name: record for name, record in message.content.items() if name != WHERE}))
    own = folder / f"node-{int(context.node_config['partition-id']) + 1}"
    return Message(to_record(answer(runtime_at(own), own, payload)), reply_to=message)


@lru_cache(maxsize=64)
def runtime_at(folder: Path) -> NodeRuntime:
    """A node's runtime, kept between requests."""
    return load_node_runtime(folder)
