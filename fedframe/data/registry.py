"""The data sources by name: what each one is, and which loader reads it."""

from __future__ import annotations

from fedframe.data.cifar import load_cifar10, load_cifar100
from fedframe.data.digits import load_digits
from fedframe.data.folders import load_imagefolder
from fedframe.data.idx import load_emnist_letters, load_fashion_mnist, load_mnist
from fedframe.data.leaf import load_femnist
from fedframe.data.lists import load_list
from fedframe.data.npz import load_npz
from fedframe.data.raw import Loader
from fedframe.data.tables import load_csv, load_parquet
from fedframe.data.tiny_imagenet import load_tiny_imagenet

SOURCES: dict[str, str] = {
    "digits": "hand-written digits, 1,797 of 8x8; comes with the installation",
    "mnist": "hand-written digits, 60,000 + 10,000 of 28x28",
    "fashion-mnist": "clothes in 10 classes, 60,000 + 10,000 of 28x28",
    "emnist-letters": "hand-written letters in 26 classes, 124,800 + 20,800 of 28x28",
    "femnist": "hand-written characters in 62 classes by writer, 28x28; json files made by LEAF",
    "cifar10": "photographs in 10 classes, 50,000 + 10,000 of 32x32",
    "cifar100": "photographs in 100 classes, 50,000 + 10,000 of 32x32",
    "tiny-imagenet": "photographs in 200 classes, 100,000 + 10,000 of 64x64",
    "imagefolder:PATH": "own images in folders: class/image or client/class/image",
    "list:FILE": "own images named in a text file: path, label and, if there, user",
    "npz:PATH": "own arrays: x_train, y_train (or x, y) and, if there, x_test, y_test, user_train, user_test",
    "csv:PATH": "own table with a header line: a label column, a client column if there",
    "parquet:PATH": "own table, as csv",
}

LOADERS: dict[str, Loader] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "emnist-letters": load_emnist_letters,
    "femnist": load_femnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "tiny-imagenet": load_tiny_imagenet,
    "imagefolder": load_imagefolder,
    "list": load_list,
    "npz": load_npz,
    "csv": load_csv,
    "parquet": load_parquet,
}
