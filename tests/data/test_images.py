from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedframe.data.images as images
from fedframe.data import ArrayInputs, load_source
from fedframe.data.images import LazyImages, decode
from fedframe.errors import DataError, SettingError
from tests.data.conftest import sentence

RNG = np.random.default_rng(0)


def picture(path: Path, shape: tuple[int, ...] = (8, 8, 3)) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(256, size=shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_folders_are_classes(tmp_path: Path) -> None:
    pixels = {(c, i): picture(tmp_path / c / f"{i}.png") for c in ("cat", "dog") for i in range(5)}
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    source = load_source(f"imagefolder:{tmp_path}", test_share=0.4)
    assert (len(source.train), len(source.test or ())) == (6, 4)
    assert source.classes == ("cat", "dog")
    assert source.input_shape == (3, 8, 8)
    assert isinstance(source.train.x, ArrayInputs)
    known = {array.tobytes(): c for (c, _), array in pixels.items()}
    for image, label in zip(source.train.x.tensor, source.train.y.tolist(), strict=True):
        assert known[image.numpy().tobytes()] == source.classes[label]


def test_folders_above_classes_are_clients_and_train_and_test_are_sets(tmp_path: Path) -> None:
    for part, clients in (("train", ("north", "south")), ("test", ("south", "west"))):
        for client in clients:
            for c in ("a", "b"):
                picture(tmp_path / part / client / c / "0.png", (6, 5))
    source = load_source(f"imagefolder:{tmp_path}")
    assert source.user_names == ("north", "south", "west")
    assert source.train.user is not None
    assert source.train.user.tolist() == [0, 0, 1, 1]
    assert source.test is not None
    assert source.test.user is not None
    assert source.test.user.tolist() == [1, 1, 2, 2]
    assert source.input_shape == (1, 6, 5)


def test_unequal_images_become_64_pixels_or_what_is_asked_for(tmp_path: Path) -> None:
    for i, shape in enumerate([(90, 70, 3), (40, 100, 3), (64, 64, 3)]):
        picture(tmp_path / "a" / f"{i}.png", shape)
    assert load_source(f"imagefolder:{tmp_path}").input_shape == (3, 64, 64)
    assert load_source(f"imagefolder:{tmp_path}?size=16").input_shape == (3, 16, 16)
    text = sentence(lambda: load_source(f"imagefolder:{tmp_path}?size=big"), SettingError)
    assert "size=64" in text


def test_a_long_image_loses_its_ends_not_its_shape(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (decode(tmp_path / "wide.png", (10, 10, 3)) == 200).all()


def test_a_large_folder_is_decoded_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(6):
        picture(tmp_path / "ab"[i % 2] / f"{i}.png")
    at_once = load_source(f"imagefolder:{tmp_path}")
    monkeypatch.setattr(images, "MAX_IN_MEMORY", 100)
    lazy = load_source(f"imagefolder:{tmp_path}")
    assert isinstance(lazy.train.x, LazyImages)
    rows = torch.arange(len(lazy.train))
    assert torch.equal(lazy.batch(lazy.train, rows), at_once.batch(at_once.train, rows))


def test_a_lazy_set_keeps_a_bounded_number_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    pixels = [picture(path) for path in paths]
    monkeypatch.setattr(images, "CACHE_SIZE", 2 * 8 * 8 * 3)
    lazy = LazyImages(paths, (8, 8, 3))
    for rows in ([0, 1, 2, 3, 4], [4, 0], [2, 2]):
        found = lazy.take(torch.tensor(rows))
        assert [image.numpy().tobytes() for image in found] == [pixels[row].tobytes() for row in rows]
        assert len(lazy._cache) <= 2


def test_damaged_and_misplaced_images_are_named(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "0.png")
    bad = tmp_path / "a" / "1.png"
    good = (tmp_path / "a" / "0.png").read_bytes()
    for content in (b"", b"text", good[: len(good) // 2]):
        bad.write_bytes(content)
        assert str(bad) in sentence(lambda: load_source(f"imagefolder:{tmp_path}"), DataError)
    bad.unlink()
    picture(tmp_path / "b" / "c" / "d" / "0.png")
    assert "mixes levels" in sentence(lambda: load_source(f"imagefolder:{tmp_path}"), DataError)
    (tmp_path / "none").mkdir()
    assert "no images" in sentence(lambda: load_source(f"imagefolder:{tmp_path}/none"), DataError)


def test_a_missing_pillow_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a" / "0.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "fedframe[images]" in sentence(lambda: load_source(f"imagefolder:{tmp_path}"), DataError)


@pytest.mark.parametrize("separator", [",", "\t", " "])
def test_lists_name_images_labels_and_users(tmp_path: Path, separator: str) -> None:
    lines = ["# a comment", ""]
    pixels = {}
    for i in range(12):
        pixels[i] = picture(tmp_path / "pics" / f"{i}.png")
        lines.append(separator.join((f"pics/{i}.png", str(i % 3 + 8), f"user{i % 2}")))
    (tmp_path / "train.txt").write_text("\n".join(lines))
    (tmp_path / "test.txt").write_text("\n".join(lines[2:5]))
    source = load_source(f"list:{tmp_path}/train.txt?test=test.txt")
    assert (len(source.train), len(source.test or ())) == (12, 3)
    assert source.classes == ("8", "9", "10")
    assert source.user_names == ("user0", "user1")
    assert isinstance(source.train.x, LazyImages)
    assert source.train.x.take(torch.tensor([7]))[0].numpy().tobytes() == pixels[7].tobytes()
    assert load_source(f"list:{tmp_path}/train.txt?test=test.txt&size=4").input_shape == (3, 4, 4)
    alone = load_source(f"list:{tmp_path}/train.txt")
    assert len(alone.train) + len(alone.test or ()) == 12


def test_a_list_may_have_a_header_and_another_root(tmp_path: Path) -> None:
    for i in range(4):
        picture(tmp_path / "far" / f"{i}.png")
    (tmp_path / "l.csv").write_text("path,label\n" + "\n".join(f"{i}.png,{'ab'[i % 2]}" for i in range(4)))
    source = load_source(f"list:{tmp_path}/l.csv?root={tmp_path}/far")
    assert source.classes == ("a", "b")
    assert source.user_names is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("path,label", "no lines"),
        ("x.png,1\nx.png", "line 2"),
        ("x.png,1,u\nx.png,2", "line 2"),
        ("x.png", "line 1"),
        ("y.png,1", "does not exist"),
    ],
)
def test_bad_lists_end_in_a_sentence(tmp_path: Path, text: str, part: str) -> None:
    picture(tmp_path / "x.png")
    (tmp_path / "l.txt").write_text(text)
    assert part in sentence(lambda: load_source(f"list:{tmp_path}/l.txt"), DataError)


def tiny(folder: Path) -> None:
    ids = ["n02", "n01"]
    for wnid in ids:
        for i in range(3):
            picture(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (64, 64, 3))
    for i in range(2):
        picture(folder / "val" / "images" / f"val_{i}.JPEG", (64, 64, 3))
    (folder / "wnids.txt").write_text("\n".join(ids))
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tnewt\nn03\tother")
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t9\t9\nval_1.JPEG\tn02\t0\t0\t9\t9\n")


@pytest.mark.parametrize("as_zip", [True, False])
def test_tiny_imagenet_is_read_and_its_pixels_are_kept(tmp_path: Path, as_zip: bool) -> None:
    if as_zip:
        tiny(tmp_path / "made" / "tiny-imagenet-200")
        data = tmp_path / "data"
        data.mkdir()
        with zipfile.ZipFile(data / "tiny-imagenet-200.zip", "w") as pack:
            for path in sorted((tmp_path / "made").rglob("*")):
                pack.write(path, path.relative_to(tmp_path / "made"))
            pack.writestr("tiny-imagenet-200/../../evil.txt", "x")
            pack.writestr("tiny-imagenet-200/test/images/test_0.JPEG", "x")
    else:
        data = tmp_path
        tiny(data / "tiny-imagenet-200")
    source = load_source("tiny-imagenet", data_dir=data)
    assert source.classes == ("newt", "goldfish")
    assert source.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.test is not None
    assert source.test.y.tolist() == [1, 0]
    assert source.input_shape == (3, 64, 64)
    again = load_source("tiny-imagenet", data_dir=data)  # this time from the kept pixels
    rows = torch.arange(6)
    assert torch.equal(again.train.x.take(rows), source.train.x.take(rows))
    folder = data / "tiny-imagenet-200"
    assert (folder / "fedframe-train.npy").exists()
    assert not (folder / "test").exists() or not as_zip
    assert not list(tmp_path.rglob("evil.txt"))


def test_an_incomplete_tiny_imagenet_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    tiny(folder)
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99\n")
    assert "n99" in sentence(lambda: load_source("tiny-imagenet", data_dir=tmp_path), DataError)
    (folder / "wnids.txt").write_text("n02 n05")
    assert "n05" in sentence(lambda: load_source("tiny-imagenet", data_dir=tmp_path), DataError)
    other = tmp_path / "other"
    other.mkdir()
    (other / "tiny-imagenet-200.zip").write_bytes(b"PK cut")
    assert "damaged" in sentence(lambda: load_source("tiny-imagenet", data_dir=other), DataError)
    assert [path.name for path in other.iterdir()] == ["tiny-imagenet-200.zip"]


def test_images_that_are_made_to_fit_are_told(tmp_path: Path) -> None:
    for number, shape in enumerate([(8, 8, 3), (8, 8, 3), (10, 6, 3), (10, 6), (8, 8)]):
        picture(tmp_path / f"{number}.png", shape)
    paths = sorted(tmp_path.iterdir())
    assert images.conversion_notes(paths[:2], (8, 8, 3)) == ()
    size, colour = images.conversion_notes(paths, (8, 8, 3))
    assert size.startswith("2 of 5 images are not 8x8 (but 10x6): each is scaled until it covers that")
    assert colour == "2 of 5 images are grey and become RGB."
    assert images.conversion_notes(paths[:1], (8, 8, 1)) == ("1 of 1 images are coloured and become grey.",)
