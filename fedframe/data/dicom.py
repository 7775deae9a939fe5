"""`dicom:PATH`: series of DICOM images in folders of classes, by the package pydicom.

A sample is a series: its slices in their order in space, of which `slices` go into the net as channels, evenly spaced
(1, the default, is the middle one), or with `slices=each` every one is a sample of its own. Stored values become those
of the device (rescale slope and intercept), a window of them becomes 0 to 255, and an inverted scale is turned round.

Samples of one patient stay together: none is tested on a model that has seen another. Where a patient's id is missing,
that cannot be known, and is asked about. Ids decide on this and on nothing else; they are in no result.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data.arrays import encode_categories
from fedframe.data.images import DEFAULT_SIZE, cover, pillow, with_progress
from fedframe.data.source import ArrayInputs, Ints, Samples
from fedframe.data.spec import DataSpec, RawData
from fedframe.errors import DataError, SettingError
from fedframe.util.extras import extra
from fedframe.util.unpacking import refuse_bomb

OPTIONS = ("size", "slices", "window", "client", "group")
SUFFIXES = (".dcm", ".dicom", ".ima")  # what is called so must be DICOM; files without a suffix may be
CLIENTS = {"patient": "PatientID", "institution": "InstitutionName"}
LAYOUT = "class/.../image.dcm, with a folder for each class"
MOST_BYTES = 4 << 30  # of all pixels, which are kept in memory
TAGS = [
    "Modality", "PatientID", "SeriesInstanceUID", "SOPInstanceUID", "InstanceNumber", "ImagePositionPatient",
    "ImageOrientationPatient", "InstitutionName", "Rows", "Columns", "SamplesPerPixel", "NumberOfFrames",
]  # fmt: skip
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Header:
    """What is read of a file before its pixels."""

    path: Path
    label: str
    series: str
    patient: str
    client: str
    size: tuple[int, int]
    frames: int
    place: tuple[float, int]  # along the series: in space if that is known, else by number


@dataclass(frozen=True)
class Series:
    """The files of a series in their order, and what they have in common."""

    files: tuple[Header, ...]

    @property
    def first(self) -> Header:
        """What label, patient and client are read off."""
        return self.files[0]

    def slices(self) -> list[tuple[Header, int]]:
        """Every slice: its file, and its number in there."""
        return [(file, frame) for file in self.files for frame in range(file.frames)]


def pydicom_package() -> ModuleType:
    """Import `pydicom`, or say how to install it."""
    with extra("dicom", "data of the form dicom:PATH need pydicom", DataError):
        import pydicom
    found: ModuleType = pydicom
    return found


def load_dicom(spec: DataSpec) -> RawData:
    """Series below folders of classes; labels are the folders' names."""
    spec.allow_options(OPTIONS)
    package, base = pydicom_package(), spec.file
    channels, window = read_slices(spec), read_window(spec)
    headers, notes = read_headers(package, spec, base)
    series = make_series(headers, spec)
    shape = spec.image_shape
    height, width = shape[:2] if shape is not None else common_size(series, spec)
    if shape is not None:
        if spec.options.get("slices", "1") != "each" and shape[2] != channels and "slices" in spec.options:
            raise SettingError(
                f"data {spec.text!r}: the run's samples have {shape[2]} channels; use slices={shape[2]}."
            )
        channels = shape[2]
    each = spec.options.get("slices") == "each"
    chosen = [[piece] for one in series for piece in one.slices()] if each else [pick(one, channels) for one in series]
    owners = [one.first for one in series for _ in (one.slices() if each else (0,))]
    if len(chosen) * height * width * channels > MOST_BYTES:
        raise DataError(
            f"data {spec.text!r}: {len(chosen):,} samples of {height}x{width} take more than {MOST_BYTES >> 30} GB; "
            "use size=64, or fewer slices."
        )
    pixels = np.empty((len(chosen), height, width, channels), np.uint8)
    windows: Counter[str] = Counter()
    for row, pieces in enumerate(with_progress(chosen, "Reading DICOM")):
        for channel, (file, frame) in enumerate(pieces):
            values, how = window_of(package, file, frame, window)
            pixels[row, :, :, channel] = fit_size(values, height, width)
            windows[how] += 1
    y, _, classes = encode_categories([one.label for one in owners], None, f"class of {base}")
    user: Ints | None = None
    users = None
    if "client" in spec.options:
        user, _, users = encode_categories([one.client for one in owners], None, f"client of {base}")
        if spec.options["client"] == "patient":  # ids are in no result
            users = tuple(f"patient {number}" for number in range(1, len(users) + 1))
    group, _, patients = encode_categories([one.patient for one in owners], None, f"patient of {base}")
    notes += [f"{len(owners):,} samples from {len(series):,} series of {len(patients):,} patients."]
    notes += [f"{count:,} slices: {how}." for how, count in windows.most_common()]
    samples = Samples(ArrayInputs(torch.from_numpy(pixels)), torch.from_numpy(y), user, group=group)
    return RawData(base.name or "dicom", samples, None, classes, users, notes=tuple(notes))


# -- options -----------------------------------------------------------------------------------------------------------
def read_slices(spec: DataSpec) -> int:
    """How many channels a sample has."""
    return 1 if spec.options.get("slices") == "each" else spec.positive_int("slices") or 1


def read_window(spec: DataSpec) -> tuple[float, float] | None:
    """Centre and width that are asked for in place of the files' own."""
    text = spec.options.get("window")
    if text is None:
        return None
    try:
        centre, width = (float(part) for part in text.split(","))
    except ValueError:
        centre, width = math.nan, math.nan
    if not (math.isfinite(centre) and math.isfinite(width) and width >= 1):
        raise SettingError(f"data {spec.text!r}: window is centre and width (1 or more), e.g. window=40,400.")
    return centre, width


# -- files -------------------------------------------------------------------------------------------------------------
def read_headers(package: ModuleType, spec: DataSpec, base: Path) -> tuple[list[Header], list[str]]:
    """The headers of all images below a folder, and what was left out."""
    found, left_out = [], Counter[str]()
    for path in dicom_files(base):
        below = path.relative_to(base).parts
        try:
            data = package.dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
        except package.errors.InvalidDicomError:
            if path.suffix:
                raise DataError(f"{path} is no DICOM file, although it is called so; take it out.") from None
            continue
        except Exception as error:  # a damaged file raises errors of many kinds
            raise DataError(f"{path} cannot be read as DICOM ({error}); take it out, or export it again.") from error
        if not (data.get("Rows") and data.get("Columns")):
            left_out[str(data.get("Modality") or "no modality")] += 1
            continue
        if len(below) < 2:
            raise DataError(f"{path} is in no folder of a class; {LAYOUT} is expected.")
        found.append(read_header(spec, path, below[0], data))
    if not found:
        raise DataError(f"{base} holds no DICOM images; {LAYOUT} is expected.")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))
    return found, [f"Files without pixels were left out: {kinds}."] if kinds else []


def dicom_files(base: Path) -> list[Path]:
    """Files that are or may be DICOM, sorted because the order on disk is arbitrary."""
    found = []
    for parent, folders, files in os.walk(base):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(parent, name)
            if (path.suffix.lower() in SUFFIXES or not path.suffix) and name.upper() != "DICOMDIR" and path.is_file():
                found.append(path)
    return sorted(path for path in found if not path.name.startswith("."))


def read_header(spec: DataSpec, path: Path, label: str, data: Any) -> Header:
    """What is needed of a file's header; what is odd about it is said in one sentence."""
    if int(data.get("SamplesPerPixel") or 1) != 1:
        raise DataError(f"{path} is in colour; export such images as PNG and use imagefolder:PATH.")
    series = str(data.get("SeriesInstanceUID") or "")
    if not series:
        raise DataError(f"{path} does not say which series it belongs to (SeriesInstanceUID); export it again.")
    group = spec.options.get("group", "patient")
    if group not in ("patient", "series"):
        raise SettingError(f"data {spec.text!r}: group = {group!r} is unknown; use patient or series.")
    patient = series if group == "series" else str(data.get("PatientID") or "").strip()
    if not patient:
        raise DataError(
            f"{path} has no PatientID, so that one patient's images may be both trained and tested on; give ids, or "
            "say that each series is another patient's: ?group=series."
        )
    asked = spec.options.get("client", "patient")
    if asked not in CLIENTS:
        raise SettingError(f"data {spec.text!r}: client = {asked!r} is unknown; use {' or '.join(CLIENTS)}.")
    client = patient if asked == "patient" else str(data.get(CLIENTS[asked]) or "").strip()
    if not client:
        raise DataError(f"{path} has no {CLIENTS[asked]}, by which clients are told apart; leave ?client={asked} out.")
    size, frames = (int(data.Rows), int(data.Columns)), int(data.get("NumberOfFrames") or 1)
    if frames < 1:
        raise DataError(f"{path} says that it holds {frames} frames; export it again.")
    refuse_bomb(path, size[0] * size[1] * frames, path.stat().st_size, "export it in parts, or uncompressed")
    return Header(path, label, series, patient, client, size, frames, place_of(data))


def place_of(data: Any) -> tuple[float, int]:
    """Where a slice lies along the normal of its plane, and its number."""
    number = int(data.get("InstanceNumber") or 0)
    position, orientation = data.get("ImagePositionPatient"), data.get("ImageOrientationPatient")
    if not position or not orientation or len(position) != 3 or len(orientation) != 6:
        return 0.0, number
    normal = np.cross([float(x) for x in orientation[:3]], [float(x) for x in orientation[3:]])
    return round(float(np.dot(normal, [float(x) for x in position])), 4), number


def make_series(headers: Sequence[Header], spec: DataSpec) -> list[Series]:
    """Files by series, each in order; a series that is not one is refused."""
    files: dict[str, list[Header]] = defaultdict(list)
    for header in headers:
        files[header.series].append(header)
    found = []
    for members in files.values():
        first = members[0]
        for other in members[1:]:
            if other.label != first.label:
                raise DataError(
                    f"{first.path} and {other.path} are of one series and in two classes; leave it in one of them."
                )
            if other.patient != first.patient or other.client != first.client:
                raise DataError(
                    f"{first.path} and {other.path} are of one series and of two patients; export it again."
                )
            if other.size != first.size:
                raise DataError(
                    f"{first.path} and {other.path} are of one series and of different sizes; leave out the one that "
                    "is no slice of it, such as an overview."
                )
        ordered = sorted(members, key=lambda each: each.place)
        for one, other in pairwise(ordered):
            if one.place == other.place:
                raise DataError(
                    f"{one.path} and {other.path} are of one series and in the same place; leave a copy out."
                )
        found.append(Series(tuple(ordered)))
    return found


def common_size(series: Sequence[Series], spec: DataSpec) -> tuple[int, int]:
    """The requested size, or the images' own if they all agree, or 64x64."""
    size = spec.positive_int("size")
    sizes = {one.first.size for one in series}
    if size:
        return size, size
    return sizes.pop() if len(sizes) == 1 else (DEFAULT_SIZE, DEFAULT_SIZE)


def pick(series: Series, count: int) -> list[tuple[Header, int]]:
    """So many slices in the middles of as many equal parts of a series; of fewer slices some come twice."""
    slices = series.slices()
    return [slices[int((place + 0.5) * len(slices) / count)] for place in range(count)]


# -- pixels ------------------------------------------------------------------------------------------------------------
def window_of(
    package: ModuleType, file: Header, frame: int, asked: tuple[float, float] | None
) -> tuple[npt.NDArray[np.uint8], str]:
    """A slice as 0 to 255, and which window of its values that is."""
    path = file.path
    data = package.dcmread(path)
    try:
        stored = data.pixel_array
    except Exception as error:  # compressed in a way that needs another package, or cut short
        kind = data.file_meta.get("TransferSyntaxUID", "") if hasattr(data, "file_meta") else ""
        named = f" ({getattr(kind, 'name', kind)})" if kind else ""
        raise DataError(
            f"The pixels of {path}{named} cannot be decoded: {' '.join(str(error).split())[:120].rstrip('.')}; if they "
            "are compressed, decompress them (gdcmconv --raw), or install a decoder: pip install pylibjpeg[all]."
        ) from error
    stored = stored[frame] if file.frames > 1 else stored
    if stored.shape != file.size:
        raise DataError(f"{path} says {file.size} and holds pixels of shape {stored.shape}; export it again.")
    values = rescaled(data, stored.astype(np.float64), path)
    if asked is not None:
        centre, width = asked
        how = f"window {centre:g}, {width:g}, as asked"
    elif data.get("WindowCenter") is not None and data.get("WindowWidth") is not None:
        centre, width = (first_number(data.get(tag), tag, path) for tag in ("WindowCenter", "WindowWidth"))
        if width < 1 or str(data.get("VOILUTFunction") or "LINEAR") != "LINEAR":
            raise DataError(f"{path} has a window that is not linear, or narrower than 1; name one: ?window=40,400.")
        how = "window as in the file"
    else:
        low, high = float(values.min()), float(values.max())
        centre, width = (low + high) / 2 + 0.5, max(high - low, 0.0) + 1
        how = "from their smallest to their largest value, for the files have no window (?window=40,400 sets one)"
    shown = linear_window(values, centre, width)
    if str(data.get("PhotometricInterpretation")) == "MONOCHROME1":  # white is the smallest value
        shown = 255 - shown
    return np.floor(shown + 0.5).astype(np.uint8), how


def rescaled(data: Any, stored: Floats, path: Path) -> Floats:
    """Values of the device: slope times what is stored, plus the intercept."""
    if data.get("ModalityLUTSequence"):
        raise DataError(f"{path} maps its values by a table (Modality LUT), which is not supported; export it as PNG.")
    slope, intercept = 1.0, 0.0
    if data.get("RescaleSlope") is not None:
        slope = first_number(data.get("RescaleSlope"), "RescaleSlope", path)
    if data.get("RescaleIntercept") is not None:
        intercept = first_number(data.get("RescaleIntercept"), "RescaleIntercept", path)
    if slope == 0:
        raise DataError(f"{path} has the RescaleSlope 0, by which all its values are the same; export it again.")
    return stored * slope + intercept


def first_number(value: Any, tag: str, path: Path) -> float:
    """A number, or the first of several."""
    try:
        found = float(value[0] if isinstance(value, list | tuple) or hasattr(value, "append") else value)
    except (TypeError, ValueError, IndexError):
        found = math.nan
    if not math.isfinite(found):
        raise DataError(f"{path}: {tag} is {str(value)[:40]!r}, which is no number; export it again.")
    return found


def linear_window(values: Floats, centre: float, width: float) -> Floats:
    """Values of a window as 0 to 255 (DICOM PS3.3, C.11.2.1.2.1)."""
    if width == 1:
        return np.where(values <= centre - 0.5, 0.0, 255.0)
    return np.clip(((values - (centre - 0.5)) / (width - 1) + 0.5) * 255, 0, 255)


def fit_size(values: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """A slice of this size: scaled until it covers it, and cut out of the middle."""
    if values.shape == (height, width):
        return values
    image = pillow()
    found: npt.NDArray[np.uint8] = np.asarray(cover(image, image.fromarray(values), height, width), np.uint8)
    return found
