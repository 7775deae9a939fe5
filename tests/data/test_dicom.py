"""DICOM series, written with pydicom: order, values, windows, patients, and what is odd about files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedframe
from fedframe.data import load_source, make_federation
from fedframe.data.stratified import held_out_mask
from fedframe.errors import DataError, FedframeError
from fedframe.jobs.inputs import image_files
from fedframe.util.locate import resolve_paths
from tests.data.conftest import sentence

PIXELS = np.arange(64, dtype=np.int16).reshape(8, 8)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    assert "pip install 'fedframe[dicom]'" in sentence(lambda: load_source(f"dicom:{tmp_path}"), DataError)


def test_rows_of_a_group_leave_together() -> None:
    group = np.repeat(np.arange(30), 4)
    owner = np.arange(120) // 60
    mask = held_out_mask(owner, group % 2, 2, 2, 0.25, np.random.default_rng(0), group)
    assert 0.15 < mask.mean() < 0.35
    assert {int(mask[group == one].sum()) for one in range(30)} == {0, 4}
    assert all(mask[owner == client].any() for client in (0, 1))


@pytest.fixture
def dicom() -> Any:
    return pytest.importorskip("pydicom", reason="needs the extra 'dicom': pip install 'fedframe[dicom]'")


def write(path: Path, pixels: Any = PIXELS, /, **tags: Any) -> Path:
    """A CT slice with these pixels and tags; None leaves a tag out."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    pixels = np.asarray(pixels)
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid(entropy_srcs=[str(path)])
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    usual = {
        "Modality": "CT", "PatientID": "p1", "SeriesInstanceUID": "1.2.3", "InstanceNumber": 1,
        "PhotometricInterpretation": "MONOCHROME2", "SamplesPerPixel": 1, "Rows": pixels.shape[-2],
        "Columns": pixels.shape[-1], "BitsAllocated": 16, "BitsStored": 16, "HighBit": 15, "PixelRepresentation": 1,
        "WindowCenter": 32, "WindowWidth": 64,
    }  # fmt: skip
    for tag, value in {**usual, **tags}.items():
        if value is not None:
            setattr(data, tag, value)
    data.PixelData = pixels.astype(np.int16).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def slices(folder: Path, heights: list[float], **tags: Any) -> None:
    """A series whose files' names and numbers are in another order than the slices in space."""
    for number, height in enumerate(heights):
        write(
            folder / f"{number}.dcm", PIXELS + int(height), InstanceNumber=number,
            ImagePositionPatient=[0, 0, height], ImageOrientationPatient=[1, 0, 0, 0, 1, 0],
            WindowCenter=128, WindowWidth=256, **tags,
        )  # fmt: skip


def corners(source: Any) -> list[list[int]]:
    """The first pixel of every channel of every sample, of both sets."""
    sets = [part for part in (source.train, source.test) if part is not None]
    found = torch.cat([part.x.take(torch.arange(len(part))) for part in sets])
    return sorted(found[:, 0, 0].tolist())


def read(folder: Path, options: str = "") -> Any:
    return load_source(f"dicom:{folder}{options}", test_share=0.5)


def two(folder: Path, **tags: Any) -> None:
    """A well and an ill patient beside the one that a test is about."""
    for kind, patients in (("well", "ab"), ("ill", "cd")):
        for name in patients:
            write(folder / kind / name / "1", PIXELS * 0, PatientID=name, SeriesInstanceUID=f"1.{ord(name)}", **tags)


def test_slices_are_in_the_order_of_space_and_are_chosen_evenly(dicom: Any, tmp_path: Path) -> None:
    two(tmp_path)
    slices(tmp_path / "ill/series", [40, 10, 30, 20, 0, 50])
    assert corners(read(tmp_path, "?slices=3"))[-1] == [10, 30, 50]
    assert corners(read(tmp_path, "?slices=6"))[-1] == [0, 10, 20, 30, 40, 50]
    assert corners(read(tmp_path))[-1] == [30]  # the middle one
    each = read(tmp_path, "?slices=each")
    assert corners(each) == [[0]] * 5 + [[10], [20], [30], [40], [50]]
    assert read(tmp_path).input_shape == (1, 8, 8)
    assert "5 samples from 5 series of 5 patients." in read(tmp_path).notes


def test_without_places_in_space_numbers_say_the_order(dicom: Any, tmp_path: Path) -> None:
    two(tmp_path)
    for name, number in (("a", 3), ("b", 1), ("c", 2)):
        write(
            tmp_path / "ill/one" / name, PIXELS + 10 * number, InstanceNumber=number, WindowCenter=128, WindowWidth=256
        )
    assert corners(read(tmp_path, "?slices=3"))[-1] == [10, 20, 30]


def shown(stored: Any, centre: float, width: float) -> Any:
    """The linear window of the standard, by its three cases."""
    low, high = centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2
    middle = ((stored - (centre - 0.5)) / (width - 1) + 0.5) * 255
    return np.where(stored <= low, 0, np.where(stored > high, 255, middle))


@pytest.mark.parametrize(
    ("tags", "options", "wanted"),
    [
        ({"RescaleSlope": 2, "RescaleIntercept": -40, "WindowCenter": 40, "WindowWidth": 50}, "",
         shown(2 * PIXELS - 40, 40, 50)),
        ({"WindowCenter": [20, 999], "WindowWidth": [30, 999]}, "", shown(PIXELS, 20, 30)),
        ({"RescaleSlope": 2}, "?window=60,20", shown(2 * PIXELS, 60, 20)),
        ({"WindowCenter": None, "WindowWidth": None}, "", PIXELS / 63 * 255),
        ({"PhotometricInterpretation": "MONOCHROME1"}, "", 255 - shown(PIXELS, 32, 64)),
    ],
)  # fmt: skip
def test_stored_values_become_a_window_of_the_devices(
    tags: dict[str, Any], options: str, wanted: Any, dicom: Any, tmp_path: Path
) -> None:
    from fedframe.data.dicom import read_headers, read_window, window_of
    from fedframe.data.load import read_spec

    write(tmp_path / "ill/1.dcm", **tags)
    spec = read_spec(f"dicom:{tmp_path}{options}")
    header = read_headers(dicom, spec, tmp_path)[0][0]
    found, how = window_of(dicom, header, 0, read_window(spec))
    np.testing.assert_array_equal(found, np.floor(wanted + 0.5).astype(np.uint8))
    assert ("no window" in how) == (tags.get("WindowCenter", 1) is None and not options)


def test_a_patient_is_trained_on_or_tested_on(dicom: Any, tmp_path: Path) -> None:
    """Also at a client, and where every slice is a sample."""
    for number in range(12):
        for scan in range(2):
            slices(
                tmp_path / ("ill" if number % 2 else "well") / f"{number}-{scan}", [10.0 * number, 10.0 * number + 1],
                PatientID=f"id {number}", SeriesInstanceUID=f"1.{number}.{scan}",
                InstitutionName=f"clinic {number // 6}",
            )  # fmt: skip
    source = load_source(f"dicom:{tmp_path}?slices=each&client=institution", test_share=0.25)

    def patients(samples: Any, rows: torch.Tensor) -> set[int]:
        return {int(value) // 10 for value in samples.x.take(rows)[:, 0, 0, 0]}

    assert source.test is not None
    tested = patients(source.test, torch.arange(len(source.test)))
    assert len(tested) == 2 + 1
    assert not tested & patients(source.train, torch.arange(len(source.train)))
    federation = make_federation(source, partition="user", clients=None, seed=0, local_test=0.3)
    assert list(federation.names) == ["clinic 0", "clinic 1"]
    for client in range(2):
        own = patients(source.train, federation.train[client])
        assert len(federation.local_test[client])
        assert not own & patients(source.train, federation.local_test[client])
    named = load_source(f"dicom:{tmp_path}?client=patient", test_share=0.25)
    assert named.user_names is not None
    assert not any("id " in name for name in named.user_names)  # ids are in no result


def test_several_frames_in_a_file_other_sizes_and_files_without_pixels(dicom: Any, tmp_path: Path) -> None:
    two(tmp_path)
    frames = np.stack([PIXELS * 0 + 50, PIXELS * 0 + 60])
    write(tmp_path / "ill/many.dcm", frames, NumberOfFrames=2, WindowCenter=128, WindowWidth=256)
    report = write(tmp_path / "ill/report.dcm", SeriesInstanceUID="1.9", Modality="SR", Rows=None, Columns=None)
    (tmp_path / "ill/notes").write_text("no DICOM, and not called so")
    (tmp_path / "ill/DICOMDIR").write_text("an index")
    source = read(tmp_path, "?slices=2")
    assert corners(source)[-1] == [50, 60]
    assert "Files without pixels were left out: 1 SR." in source.notes
    report.unlink()
    pytest.importorskip("PIL")
    write(
        tmp_path / "well/wide",
        np.full((4, 12), 70),
        PatientID="w",
        SeriesInstanceUID="1.7",
        WindowCenter=128,
        WindowWidth=256,
    )
    assert read(tmp_path).input_shape == (1, 64, 64)
    assert read(tmp_path, "?size=6").input_shape == (1, 6, 6)
    assert [70] in corners(read(tmp_path, "?size=6"))


def cut_short(path: Path) -> None:
    """A file whose last pixels are missing."""
    write(path)
    path.write_bytes(path.read_bytes()[:-5])


ODD: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: write(f / "ill/x.dcm", PatientID=None), "has no PatientID"),
    (lambda f: write(f / "ill/x.dcm", SeriesInstanceUID=None), "does not say which series"),
    (lambda f: write(f / "x.dcm"), "is in no folder of a class"),
    (lambda f: write(f / "ill/x.dcm", SamplesPerPixel=3), "is in colour"),
    (lambda f: (f / "ill/x.dcm").write_bytes(b"0" * 200), "is no DICOM file"),
    (lambda f: cut_short(f / "ill/x.dcm"), "cannot be decoded"),
    (lambda f: write(f / "ill/x.dcm", RescaleSlope=0), "RescaleSlope 0"),
    (lambda f: write(f / "ill/x.dcm", WindowWidth=0.5), "narrower than 1"),
    (lambda f: write(f / "ill/x.dcm", NumberOfFrames=2_000_000_000), "more than 100 times as many"),
    (lambda f: write(f / "ill/x.dcm", NumberOfFrames=-5), "says that it holds -5 frames"),
    (lambda f: write(f / "ill/x.dcm", VOILUTFunction="SIGMOID"), "not linear"),
    (lambda f: (write(f / "ill/x.dcm"), write(f / "well/y.dcm", InstanceNumber=2)), "of one series and in two classes"),
    (lambda f: (write(f / "ill/x.dcm"), write(f / "ill/y.dcm")), "in the same place"),
    (lambda f: (write(f / "ill/x.dcm"), write(f / "ill/y.dcm", PatientID="p2")), "of two patients"),
    (lambda f: (write(f / "ill/x.dcm"), write(f / "ill/y.dcm", PIXELS[:4])), "of different sizes"),
]


@pytest.mark.parametrize(("make", "part"), ODD, ids=[part for _, part in ODD])
def test_odd_files_are_named(make: Callable[[Path], Any], part: str, dicom: Any, tmp_path: Path) -> None:
    two(tmp_path)
    make(tmp_path)
    assert part in sentence(lambda: read(tmp_path), DataError)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("?window=40", "window is centre and width"),
        ("?window=40,0", "window is centre and width"),
        ("?slices=0", "slices must be a whole number"),
        ("?client=doctor", "client = 'doctor' is unknown"),
        ("?client=institution", "has no InstitutionName"),
        ("?group=ward", "group = 'ward' is unknown"),
        ("?depth=3", "unknown option 'depth'"),
    ],
)
def test_options_that_cannot_be(options: str, part: str, dicom: Any, tmp_path: Path) -> None:
    two(tmp_path)
    assert part in sentence(lambda: read(tmp_path, options), FedframeError)


def test_a_run_and_what_it_depends_on(dicom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(24):
        kind = number % 2
        pixels = np.full((16, 16), 200 * kind) + np.arange(16)
        write(
            tmp_path / "scans" / ("ill" if kind else "well") / f"{number}.dcm", pixels, PatientID=f"p{number}",
            SeriesInstanceUID=f"1.{number}", WindowCenter=128, WindowWidth=256,
        )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert resolve_paths("dicom:scans?size=8") == f"dicom:{tmp_path}/scans?size=8"
    before = image_files("dicom:scans")
    result = fedframe.run(
        "fedavg", data="dicom:scans?size=12", model="mlp:8", rounds=3, clients=2, partition="iid", workers=1,
        out=tmp_path / "run", progress=False, min_client_size=2,
    )  # fmt: skip
    assert result.scores["generic"]["final"] == 1
    (tmp_path / "scans/ill/1.dcm").unlink()
    assert image_files("dicom:scans") != before
