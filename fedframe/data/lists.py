"""`list:FILE`: a text file of image paths, labels and, if there, users: ImageNet-LT, iNaturalist-User."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fedframe.data.arrays import codes
from fedframe.data.files import read
from fedframe.data.images import common_shape, image_inputs
from fedframe.data.raw import Raw, Request
from fedframe.data.source import Ints, Samples
from fedframe.errors import DataError

HEADERS = frozenset(("path", "file", "filename", "image", "image_path", "image_id"))


@dataclass(frozen=True)
class _Lines:
    """The columns of a list file."""

    paths: list[Path]
    labels: list[str]
    users: list[str] | None


def load_list(request: Request) -> Raw:
    """Images named by a list, decoded when asked for."""
    request.allow(("test", "size", "root"))
    file = request.file
    train, test = _both_lists(request)
    if test is not None and (train.users is None) != (test.users is None):
        raise DataError(f"{file} and its test list must both name users or both name none.")
    second = test.labels if test else None
    y, y_test, classes = codes(_values(train.labels), _values(second), f"labels of {file}")
    user: Ints | None = None
    user_test: Ints | None = None
    users = None
    if train.users is not None:
        others = test.users if test else None
        user, user_test, users = codes(_values(train.users), _values(others), f"users of {file}")
    shape = request.image_shape or common_shape(train.paths[:200], request.whole("size"))
    first = Samples(image_inputs(train.paths, shape, lazy=True), torch.from_numpy(y), user)
    if test is None or y_test is None:
        return Raw(file.stem, first, None, classes, users)
    tested = Samples(image_inputs(test.paths, shape, lazy=True), torch.from_numpy(y_test), user_test)
    return Raw(file.stem, first, tested, classes, users)


def listed_images(request: Request) -> list[Path]:
    """The images that a list, and its list of test images, name."""
    train, test = _both_lists(request)
    return [*train.paths, *(test.paths if test is not None else ())]


def _both_lists(request: Request) -> tuple[_Lines, _Lines | None]:
    """The lists of training and, if there is one, of test images."""
    below = Path(request.options["root"]).expanduser() if "root" in request.options else None
    if "test" not in request.options:
        return _lines(request.file, below), None
    other = request.file.parent / Path(request.options["test"]).expanduser()
    if not other.exists():
        raise DataError(f"data {request.spec!r}: there is no {other.absolute()}.")
    return _lines(request.file, below), _lines(other, below)


def _values(texts: list[str] | None) -> list[int] | list[str] | None:
    """Whole numbers where all are: 10 then sorts behind 9."""
    if texts is None:
        return None
    try:
        return [int(text) for text in texts]
    except ValueError:
        return texts


def _lines(file: Path, below: Path | None) -> _Lines:
    """Read a list; its separator is the first of tab, comma and blank that its first line has."""
    try:
        text = read(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{file} is no text in UTF-8; lines of path, label and user are expected.") from None
    lines = [line.strip() for line in text.splitlines()]
    numbered = [(i, line) for i, line in enumerate(lines, 1) if line and not line.startswith("#")]
    if not numbered:
        raise DataError(f"{file} is empty; lines of path, label and user are expected.")
    first = numbered[0][1]
    separator = "\t" if "\t" in first else "," if "," in first else None
    rows = [(i, [part.strip() for part in line.split(separator)]) for i, line in numbered]
    if rows[0][1][0].lower() in HEADERS:
        rows = rows[1:]
    width = len(rows[0][1]) if rows else 0
    for i, row in rows:
        if len(row) != width or width not in (2, 3) or "" in row:
            raise DataError(f"{file}, line {i}: path, label and (in every line or in none) a user are expected.")
    if not rows:
        raise DataError(f"{file} has a header and no lines.")
    base = below or file.parent
    paths = [base / row[0] for _, row in rows]
    if not paths[0].exists():
        raise DataError(f"{file} names {paths[0].absolute()}, which does not exist; set root=FOLDER in the spec.")
    return _Lines(paths, [row[1] for _, row in rows], [row[2] for _, row in rows] if width == 3 else None)
