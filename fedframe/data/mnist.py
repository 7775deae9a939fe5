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

from fedframe.data.arrays import from_arrays, make_samples
from fedframe.data.files import RemoteFile, download_files, extract, find_first, read_bytes, search_folders
from fedframe.data.source import ArrayInputs, Samples
from fedframe.data.spec import DataSpec, RawData
from fedframe.errors import DataError


def load_digits(spec: DataSpec) -> RawData:
    """1,797 hand-written digits of 8x8 pixels that scikit-learn carries, as one set: nothing to download."""
    spec.allow_options(())
    # scikit-learn takes over a second to import, so its file is read directly: 64 pixels (0 to 16) and the digit.
    package = find_spec("sklearn")
    locations = package.submodule_search_locations if package is not None else None
    if not locations:
        raise DataError("the data set digits comes with scikit-learn: pip install scikit-learn.")
    try:
        with gzip.open(Path(locations[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
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
EMNIST_ZIP = RemoteFile(
    "gzip.zip",
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
    "58c8d27c78d21e728a6bc7b3cc06412e",
)


def load_mnist(spec: DataSpec) -> RawData:
    """Hand-written digits, 60,000 + 10,000, 28x28."""
    spec.allow_options(())
    folders = search_folders(spec, ("MNIST/raw", "MNIST"))
    remotes = _remotes(MNIST_URLS, MNIST_MD5)
    train, test = _read_sets(_find_or_download(spec, folders, remotes), 10, _Variant(confused_with=FASHION_START))
    return RawData("mnist", train, test, tuple(string.digits))


def load_fashion_mnist(spec: DataSpec) -> RawData:
    """Pictures of clothes, 60,000 + 10,000, 28x28."""
    spec.allow_options(())
    subfolders = ("FashionMNIST/raw", "FashionMNIST", "fashion")
    folders = [*search_folders(spec, subfolders), DEBIAN]
    remotes = _remotes(FASHION_URLS, FASHION_MD5)
    train, test = _read_sets(_find_or_download(spec, folders, remotes), 10, _Variant(confused_with=MNIST_START))
    return RawData("fashion-mnist", train, test, FASHION_CLASSES)


def load_emnist_letters(spec: DataSpec) -> RawData:
    """Hand-written letters, 124,800 + 20,800, 28x28, upper and lower case as one class."""
    spec.allow_options(())
    folders = search_folders(spec, ("emnist", "EMNIST/raw", "EMNIST", "gzip", "emnist/gzip", "emnist-letters/gzip"))
    found = _find_all(folders, EMNIST_FILES)
    if found is None:
        archive = find_first(folders, ("gzip.zip", "emnist.zip"))
        if archive is None:
            expected = ", ".join(f"{name}.gz" for name in EMNIST_FILES) + " (or gzip.zip, which holds them)"
            archive = download_files(spec, (EMNIST_ZIP,), expected) / EMNIST_ZIP.file
        extract(archive, [f"gzip/{name}.gz" for name in EMNIST_FILES], archive.parent)
        found = [archive.parent / f"{name}.gz" for name in EMNIST_FILES]
    train, test = _read_sets(found, 26, _Variant(first_label=1, transposed=True))
    return RawData("emnist-letters", train, test, tuple(string.ascii_lowercase))


# The two sets have the same file names; their first labels tell them apart.
MNIST_START = bytes((5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5))
FASHION_START = bytes((9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9))


@dataclass(frozen=True)
class _Variant:
    """How a set differs from MNIST."""

    first_label: int = 0
    transposed: bool = False
    confused_with: bytes | None = None  # the first labels of the set with the same file names


def _remotes(urls: tuple[str, ...], checksums: tuple[str, ...]) -> list[RemoteFile]:
    return [
        RemoteFile(f"{name}.gz", tuple(f"{url}{name}.gz" for url in urls), md5)
        for name, md5 in zip(FILES, checksums, strict=True)
    ]


def _find_all(folders: list[Path], names: tuple[str, ...]) -> list[Path] | None:
    """All the files, compressed or not, of the first folder that has them all."""
    for folder in folders:
        found = [find_first([folder], (name, f"{name}.gz", name.replace("-idx", ".idx"))) for name in names]
        if all(found):
            return [path for path in found if path is not None]
    return None


def _find_or_download(spec: DataSpec, folders: list[Path], remotes: list[RemoteFile]) -> list[Path]:
    """The four files, downloaded if no folder has them."""
    found = _find_all(folders, FILES)
    if found is None:
        folder = download_files(spec, remotes, ", ".join(f"{name}.gz" for name in FILES))
        found = [folder / remote.file for remote in remotes]
    return found


def _read_sets(files: list[Path], classes: int, variant: _Variant) -> tuple[Samples, Samples]:
    """Training and test set from the files (images, labels, images, labels)."""
    return _read_set(files[0], files[1], classes, variant), _read_set(files[2], files[3], classes, variant)


def _read_set(image_file: Path, label_file: Path, classes: int, variant: _Variant) -> Samples:
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if variant.confused_with and labels[: len(variant.confused_with)].tobytes() == variant.confused_with:
        raise DataError(f"{label_file} belongs to another set of the same file names (MNIST or Fashion-MNIST).")
    y = labels.astype(np.int64) - variant.first_label
    if y.size and not 0 <= y.min() <= y.max() < classes:
        first, last = variant.first_label, variant.first_label + classes - 1
        raise DataError(f"{label_file} has a label outside {first} to {last}.")
    if variant.transposed:
        images = images.transpose(0, 2, 1)
    x = ArrayInputs(torch.from_numpy(np.array(images[..., None], order="C")))  # a writable copy
    return make_samples(x, y, None, str(image_file))


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read the array of bytes in an IDX file: magic number, sizes, values."""
    data = read_bytes(path)
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
