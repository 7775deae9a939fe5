"""Data sources, partitions, and the Federation: the clients' views of one shared array, without copies."""

from fedframe.data.augment import Augment, read_augment
from fedframe.data.federation import Federation, make_federation
from fedframe.data.load import SOURCES, load_source
from fedframe.data.partition import PARTITIONS
from fedframe.data.ragged import Ragged
from fedframe.data.source import ArrayInputs, Inputs, Samples, Source, normalised
from fedframe.data.tables import encode_rows

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "ArrayInputs",
    "Augment",
    "Federation",
    "Inputs",
    "Ragged",
    "Samples",
    "Source",
    "encode_rows",
    "load_source",
    "make_federation",
    "normalised",
    "read_augment",
]
