from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedframe.data import load_source
from fedframe.data.files import RemoteFile, download_files
from fedframe.data.spec import DataSpec
from fedframe.errors import DataError
from tests.data.conftest import sentence


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A small web server for a folder with one file."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.bin").write_bytes(b"content")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def spec(tmp_path: Path, download: bool = True) -> DataSpec:
    return DataSpec("some", "some", None, data_dir=tmp_path / "data", download=download)


@pytest.mark.slow
def test_a_file_is_fetched_from_the_first_address_that_has_it(tmp_path: Path, site: str) -> None:
    md5 = hashlib.md5(b"content").hexdigest()
    folder = download_files(spec(tmp_path), [RemoteFile("a.bin", (f"{site}none.bin", f"{site}a.bin"), md5)], "a.bin")
    assert (folder / "a.bin").read_bytes() == b"content"


@pytest.mark.slow
def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path, site: str) -> None:
    remote = RemoteFile("a.bin", (f"{site}a.bin",), "0" * 32)
    text = sentence(lambda: download_files(spec(tmp_path), [remote], "a.bin"), DataError)
    assert "put a.bin into" in text
    assert not (tmp_path / "data" / "some").exists()


def test_downloads_can_be_off(tmp_path: Path) -> None:
    for name in ("mnist", "emnist-letters", "cifar10", "cifar100", "tiny-imagenet"):
        text = sentence(lambda name=name: load_source(name, data_dir=tmp_path, download=False), DataError)  # type: ignore[misc]
        assert "downloads are off: put" in text
        assert str(tmp_path / name) in text
    assert list(tmp_path.iterdir()) == []
