"""The data sources by name, and `load_source`: load, split off a test set, normalise by the training data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import torch

from fedframe.data.arrays import from_python, load_npz
from fedframe.data.cifar import load_cifar10, load_cifar100
from fedframe.data.dicom import load_dicom
from fedframe.data.femnist import load_femnist
from fedframe.data.hub import load_hub
from fedframe.data.images import load_imagefolder, load_list
from fedframe.data.mnist import load_digits, load_emnist_letters, load_fashion_mnist, load_mnist
from fedframe.data.source import ArrayInputs, Ints, Samples, Source, statistics
from fedframe.data.spec import DataSpec, Loader, RawData
from fedframe.data.stratified import held_out_mask, subsample
from fedframe.data.tables import fit_encoding, load_csv, load_parquet
from fedframe.data.target import Target
from fedframe.data.tiny_imagenet import load_tiny_imagenet
from fedframe.errors import DataError, SettingError, nearest
from fedframe.util.seeds import numpy_generator_for

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
    "dicom:PATH": "own DICOM series in folders of classes: slices, windows and patients as in the files, by 'pydicom'",
    "list:FILE": "own images named in a text file: path, label and, if there, user",
    "npz:PATH": "own arrays: x_train, y_train (or x, y) and, if there, x_test, y_test, user_train, user_test; MedMNIST",
    "csv:PATH": "own table with a header line: a label column, a client column if there",
    "parquet:PATH": "own table, as csv",
    "hf:NAME_OR_PATH": "a data set of the Hugging Face hub, or one in a folder: images or arrays, by 'datasets'",
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
    "dicom": load_dicom,
    "list": load_list,
    "npz": load_npz,
    "csv": load_csv,
    "parquet": load_parquet,
    "hf": load_hub,
}


STATISTICS_SAMPLE = 1000  # images decoded for the normalisation of a set that is not in memory


def load_source(
    data: object = "digits",
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    test_share: float = 0.2,
    data_share: float = 1.0,
    label: str | None = None,
    client_column: str | None = None,
    download: bool = True,
    task: str = "auto",
) -> Source:
    """Load a data set.

    data: a spec ("digits", "npz:my.npz", "list:train.txt?test=test.txt&size=64"; see SOURCES), a Source, or
    Python objects: (x_train, y_train), (x_train, y_train, x_test, y_test), a dict with those names, a torch
    Dataset or a pair of them. A set without test samples gets `test_share` of the training samples as its
    test set, stratified by class. Of the remaining training samples `data_share` is kept, the same
    share of every class; the test set does not depend on it. `task` says what is learned: classification,
    regression, multilabel, or (auto) what the labels plainly are.
    """
    if not 0 <= test_share < 1:
        raise SettingError(f"test_share is {test_share}; use a share from 0 to below 1, e.g. 0.2.")
    if not 0 < data_share <= 1:
        raise SettingError(f"data_share is {data_share}; use a share above 0 and at most 1, e.g. 0.1.")
    if isinstance(data, Source) and data.test is not None and data_share == 1:
        return check_task(data, task)
    if isinstance(data, str):
        data = read_spec(data, data_dir, seed, label, client_column, download, task)
    return check_task(_prepare(load_raw(data, task), seed, test_share, data_share), task)


def check_task(source: Source, asked: str) -> Source:
    """The source, unless it is of another task than asked: many sources know classes only."""
    if asked not in ("auto", source.task):
        raise SettingError(
            f"task = {asked!r}: the data {source.name!r} are for {source.task}; use task = {source.task}, or numbers "
            "in csv:PATH, parquet:PATH or npz:PATH."
        )
    return source


def load_raw(data: object, task: str = "auto") -> RawData:
    """Load the samples of a parsed spec, a Source or Python objects, before test split and normalisation."""
    if isinstance(data, Source):
        named = (data.user_names, data.columns, data.notes)
        train, test = (with_units(samples, data.target) for samples in (data.train, data.test))
        assert train is not None
        return RawData(data.name, train, test, data.classes, *named, data.target)
    return LOADERS[data.name](data) if isinstance(data, DataSpec) else from_python(data, task)


def with_units(samples: Samples | None, target: Target | None) -> Samples | None:
    """Samples whose numbers are in their own units again."""
    if samples is None or samples.values is None or target is None:
        return samples
    return replace(samples, values=target.unscaled(samples.values))


def read_spec(
    text: str,
    data_dir: Path | None = None,
    seed: int = 0,
    label: str | None = None,
    client_column: str | None = None,
    download: bool = True,
    task: str = "auto",
) -> DataSpec:
    """Parse a spec: NAME, or NAME:PATH, or NAME:PATH?option=value&option=value."""
    name, _, rest = text.strip().partition(":")
    known = {spec.partition(":")[0]: spec for spec in SOURCES}
    if name not in known:
        found = Path(text.partition("?")[0]).expanduser()
        kind = "imagefolder" if found.is_dir() else {".txt": "list"}.get(found.suffix, found.suffix[1:])
        if found.exists() and kind in known:
            raise SettingError(f"data {text!r} is a path: write {kind}:{text}.")
        raise SettingError(f"data {name!r} is unknown: {nearest(name, known)}")
    wants_path = ":" in known[name]
    if bool(rest) != wants_path:
        usage = f"write {known[name]}" if wants_path else f"write {name} alone"
        raise SettingError(f"data {text!r} cannot be read: {usage}.")
    where, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    path = Path(where).expanduser() if wants_path else None
    return DataSpec(text, name, path, options, data_dir, seed, label, client_column, download, None, task)


def _prepare(raw: RawData, seed: int, test_share: float, data_share: float) -> Source:
    """Split off a test set, subsample and normalise: the steps that every source shares."""
    train, test = raw.train, raw.test
    if test is None:
        train, test = _split_test(train, raw, test_share, numpy_generator_for(seed, "test"))
    train = subsample(train, len(raw.classes), data_share, numpy_generator_for(seed, "data share"))
    columns = raw.columns
    if columns is not None:
        train, test, columns = fit_encoding(train, test, columns)
    mean, std = statistics(training_values(train, seed))
    train, test, target = scaled_target(train, test, raw.target)
    return Source(raw.name, train, test, raw.classes, mean, std, raw.user_names, columns, raw.notes, target)


def scaled_target(train: Samples, test: Samples, target: Target | None) -> tuple[Samples, Samples, Target | None]:
    """Numbers to learn with mean 0 and standard deviation 1 over the training samples: rates suit any unit then."""
    if target is None or target.task != "regression":
        return train, test, target
    mean, std = statistics(train.targets)
    target = replace(target, mean=mean, std=std)
    first, second = (replace(each, values=target.scaled(each.targets)) for each in (train, test))
    return first, second, target


def _split_test(samples: Samples, raw: RawData, share: float, rng: np.random.Generator) -> tuple[Samples, Samples]:
    """Split off a stratified share of the samples as the test set."""
    labels = samples.y.numpy()
    owner: Ints = np.zeros(len(labels), np.int64)  # one client that owns everything
    mask = held_out_mask(owner, labels, 1, len(raw.classes), share, rng, samples.group)
    if not mask.any():
        raise DataError(
            f"{raw.name}: {len(labels)} training samples leave no test set at test_share={share:g}; use a "
            "larger share, or data with at least two samples of a class."
        )
    left, right = np.flatnonzero(~mask), np.flatnonzero(mask)
    return samples.subset(torch.from_numpy(left)), samples.subset(torch.from_numpy(right))


def training_values(train: Samples, seed: int) -> torch.Tensor:
    """The training inputs, or a limited sample of inputs that are not in memory."""
    if isinstance(train.x, ArrayInputs):
        return train.x.tensor
    rows = numpy_generator_for(seed, "statistics").permutation(len(train))[:STATISTICS_SAMPLE]
    return train.x.take(torch.from_numpy(np.sort(rows)))
