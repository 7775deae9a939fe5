"""The ClientApp of a simulation: Ray's processes load it by name, keep each node's data, and answer letters with it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedframe.network.flower.records import from_record, to_record
from fedframe.network.local_nodes import node_work
from fedframe.network.node import NodeRuntime

WHERE = "where"  # beside a letter: the folder of all nodes, which the simulated ones share
app = ClientApp()


@app.query()
def who(message: Message, context: Context) -> Message:
    """Which of the simulated nodes this is."""
    number = int(context.node_config["partition-id"])
    return Message(RecordDict({WHERE: ConfigRecord({"number": number})}), reply_to=message)


@app.train()
def answer(message: Message, context: Context) -> Message:
    """Answer a letter."""
    folder = Path(str(message.content.config_records[WHERE]["folder"]))
    letter = from_record(RecordDict({n: r for n, r in message.content.items() if n != WHERE}))
    work = work_of(folder / f"node-{int(context.node_config['partition-id']) + 1}")
    return Message(to_record(work.answer(letter)[2]), reply_to=message)


@lru_cache(maxsize=64)
def work_of(folder: Path) -> NodeRuntime:
    """A node's work, kept between letters."""
    return node_work(folder)
