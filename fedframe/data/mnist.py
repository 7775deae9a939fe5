"""`digits`, `mnist`, `fashion-mnist`, `emnist-letters`: small grey images from scikit-learn or IDX files."""

from __future__ import annotations

import gzip
import string
import struct
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data.arrays import from_arrays, samples
from fedframe.data.files import Remote, fetch, locate, places, read, unpack
from fedframe.data.source import ArrayInputs, Samples
from fedframe.data.spec import Raw, Request
from fedframe.errors import DataError


def load_digits(request: Request) -> Raw:
    """All of them as one set; the test set is a share of it."""
    request.allow(())
    # scikit-learn takes over a second to import, so its file is read where it lies: 64 pixels (0 to 16) and the digit.
    package = find_spec("sklearn")
    places = package.submodule_search_locations if package is not None else None
    if not places:
        raise DataError("the data set digits comes with scikit-learn: pip install scikit-learn.")
    try:
        with gzip.open(Path(places[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
            values = np.loadtxt(file, delimiter=",").astype(np.uint8)
    except OSError:
        from sklearn.datasets import load_digits as read  # a release that keeps its file elsewhere

        values = np.column_stack([read().data, read().target]).astype(np.uint8)
    return from_arrays("digits", {"x": values[:, :-1].reshape(-1, 8, 8), "y": values[:, -1]}, "digits")


FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
MNIST_URLS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
FASHION_URLS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package dataset-fashion-mnist puts them
EMNIST_FILES = tuple(
    f"emnist-letters-{part}-{kind}" for part in ("train", "test") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
EMNIST_ZIP = Remote(
    "gzip.zip",
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
    "58c8d27c78d21e728a6bc7b3cc06412e",
)


def load_mnist(request: Request) -> Raw:
    """Hand-written digits, 60,000 + 10,000, 28x28."""
    request.allow(())
    folders = places(request, ("MNIST/raw", "MNIST"))
    remotes = _remotes(MNIST_URLS, MNIST_MD5)
    train, test = _sets(_found(request, folders, remotes), 10, _Twist(stranger=FASHION_START))
    return Raw("mnist", train, test, tuple(string.digits))


def load_fashion_mnist(request: Request) -> Raw:
    """Pictures of clothes, 60,000 + 10,000, 28x28."""
    request.allow(())
    customary = ("FashionMNIST/raw", "FashionMNIST", "fashion")
    folders = [*places(request, customary), DEBIAN]
    remotes = _remotes(FASHION_URLS, FASHION_MD5)
    train, test = _sets(_found(request, folders, remotes), 10, _Twist(stranger=MNIST_START))
    return Raw("fashion-mnist", train, test, FASHION_CLASSES)


def load_emnist_letters(request: Request) -> Raw:
    """Hand-written letters, 124,800 + 20,800, 28x28, upper and lower case as one class."""
    request.allow(())
    folders = places(request, ("emnist", "EMNIST/raw", "EMNIST", "gzip", "emnist/gzip", "emnist-letters/gzip"))
    found = _look(folders, EMNIST_FILES)
    if found is None:
        archive = locate(folders, ("gzip.zip", "emnist.zip"))
        if archive is None:
            belong = ", ".join(f"{name}.gz" for name in EMNIST_FILES) + " (or gzip.zip, which holds them)"
            archive = fetch(request, (EMNIST_ZIP,), belong) / EMNIST_ZIP.file
        unpack(archive, [f"gzip/{name}.gz" for name in EMNIST_FILES], archive.parent)
        found = [archive.parent / f"{name}.gz" for name in EMNIST_FILES]
    train, test = _sets(found, 26, _Twist(first_label=1, transposed=True))
    return Raw("emnist-letters", train, test, tuple(string.ascii_lowercase))


# The two sets have the same file names; their first labels tell them apart.
MNIST_START = bytes((5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5))
FASHION_START = bytes((9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9))


@dataclass(frozen=True)
class _Twist:
    """What a set does differently from MNIST."""

    first_label: int = 0
    transposed: bool = False
    stranger: bytes | None = None  # the first labels of the set that these files are mistaken for


def _remotes(urls: tuple[str, ...], checksums: tuple[str, ...]) -> list[Remote]:
    return [
        Remote(f"{name}.gz", tuple(f"{url}{name}.gz" for url in urls), md5)
        for name, md5 in zip(FILES, checksums, strict=True)
    ]


def _look(folders: list[Path], names: tuple[str, ...]) -> list[Path] | None:
    """All the files, unpacked or not, from one folder."""
    for folder in folders:
        found = [locate([folder], (name, f"{name}.gz", name.replace("-idx", ".idx"))) for name in names]
        if all(found):
            return [path for path in found if path is not None]
    return None


def _found(request: Request, folders: list[Path], remotes: list[Remote]) -> list[Path]:
    """The four files, downloaded where they are not there."""
    found = _look(folders, FILES)
    if found is None:
        folder = fetch(request, remotes, ", ".join(f"{name}.gz" for name in FILES))
        found = [folder / remote.file for remote in remotes]
    return found


def _sets(files: list[Path], classes: int, twist: _Twist) -> tuple[Samples, Samples]:
    """Training and test set of (images, labels, images, labels)."""
    return _set(files[0], files[1], classes, twist), _set(files[2], files[3], classes, twist)


def _set(image_file: Path, label_file: Path, classes: int, twist: _Twist) -> Samples:
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if twist.stranger and labels[: len(twist.stranger)].tobytes() == twist.stranger:
        raise DataError(f"{label_file} belongs to another set of the same file names (MNIST or Fashion-MNIST).")
    y = labels.astype(np.int64) - twist.first_label
    if y.size and not 0 <= y.min() <= y.max() < classes:
        first, last = twist.first_label, twist.first_label + classes - 1
        raise DataError(f"{label_file} has a label outside {first} to {last}.")
    if twist.transposed:
        images = images.transpose(0, 2, 1)
    x = ArrayInputs(torch.from_numpy(np.array(images[..., None], order="C")))  # a writable copy
    return samples(x, y, None, str(image_file))


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of bytes in an IDX file: magic number, sizes, values."""
    data = read(path)
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(f"{path} is no IDX file of bytes in {dimensions} dimensions.")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    expected = int(np.prod(shape))
    if len(data) - start != expected or expected == 0:
        raise DataError(
            f"{path} is damaged or cut short: {expected} values are expected behind the header for {shape}, "
            f"and {len(data) - start} are there."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
