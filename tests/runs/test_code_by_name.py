"""Nothing that a kit or a run folder names is imported unless the person at this machine has named or allowed it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedframe
from fedframe.cli.app import permissions_first
from fedframe.errors import DataError, FedframeError, SettingError
from fedframe.experiments.gain import gain
from fedframe.report.page.build import write_page
from fedframe.runs.folder import CONFIG, MODEL
from fedframe.util import allowed_code
from fedframe.util.code_files import find_module
from fedframe.util.files import read_tensors, write_tensors
from tests.helpers import blobs

NET = """
from pathlib import Path

from torch import nn

Path(__file__).with_suffix(".ran").touch()


class Net(nn.Module):
    dim = 4

    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0], 4)

    def forward(self, x):
        return self.layer(x)
"""
GIVEN: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 8, "workers": 1, "partition": "user", "personal": False}


@pytest.fixture(autouse=True)
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who has allowed nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(allowed_code.PASSED_ON, "")
    monkeypatch.setattr(allowed_code, "_places", set())


def forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on another machine."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    monkeypatch.setenv(allowed_code.PASSED_ON, "")
    monkeypatch.setattr(allowed_code, "_places", set())


def own_net(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "net.py"
    path.parent.mkdir()
    path.write_text(NET)
    return path


def run(model: str, out: Path) -> fedframe.Result:
    return fedframe.run("fedavg", data=blobs(), model=model, out=out, progress=False, **GIVEN)


USES: dict[str, Callable[[Path], object]] = {
    "resume": lambda folder: fedframe.resume(folder, data=blobs(), from_round=1, progress=False),
    "predict": lambda folder: fedframe.Predictor.load(folder),
    "personalise": lambda folder: fedframe.personalise(folder, blobs(clients=1), name="late", progress=False),
    "measure": lambda folder: fedframe.measure.examine(folder, data=blobs()),
    "gain": lambda folder: gain(folder, data=blobs(), progress=False),
    "run --config": lambda folder: fedframe.run(config=folder / CONFIG, data=blobs(), progress=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_a_file_that_somebody_elses_folder_names_is_not_run(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = own_net(tmp_path)
    folder = run(f"{net}:Net", tmp_path / "run").folder
    forget(monkeypatch, tmp_path)
    net.with_suffix(".ran").unlink()
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("fedframe_own_")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SettingError, match=r"nobody here has allowed.*--allow-code .*net\.py"):
        USES[use](folder)
    assert not net.with_suffix(".ran").exists()
    fedframe.allow_code(net)
    try:
        USES[use](folder)
    finally:
        assert net.with_suffix(".ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("use", ["resume", "predict", "personalise", "measure", "gain"])
@pytest.mark.parametrize("field", ["model", "method"])
def test_a_module_that_a_folder_names_is_not_imported(
    use: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run("mlp:8", tmp_path / "run").folder
    (tmp_path / "canary_pack").mkdir()
    (tmp_path / "canary_pack" / "__init__.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    (tmp_path / "canary_pack" / "inner.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    poison(folder, field, "canary_pack.inner:Net")
    with pytest.raises(FedframeError, match="nobody here has allowed"):
        USES[use](folder)
    assert not (tmp_path / "ran").exists()
    assert "canary_pack" not in sys.modules


def poison(folder: Path, field: str, name: str) -> None:
    """Have a run folder name other code, as a forger would: with checksums that fit."""
    values = yaml.safe_load((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(yaml.safe_dump({**values, field: name}))
    tensors, notes = read_tensors(folder / MODEL)
    write_tensors(folder / MODEL, tensors, {**notes, field: name})


@pytest.mark.slow
def test_a_report_of_somebody_elses_folder_imports_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = own_net(tmp_path)
    folder = run(f"{net}:Net", tmp_path / "run").folder
    forget(monkeypatch, tmp_path)
    net.with_suffix(".ran").unlink()
    said: list[str] = []
    page = write_page([folder], notify=said.append)
    assert page.exists()
    assert any("data of" in text or "nobody here has allowed" in text for text in said)
    assert not net.with_suffix(".ran").exists()


@pytest.mark.slow
def test_ones_own_run_goes_on_without_a_question_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(f"{own_net(tmp_path)}:Net", tmp_path / "run").folder
    monkeypatch.setenv(allowed_code.PASSED_ON, "")  # as in a process that was not started by this one
    monkeypatch.setattr(allowed_code, "_places", set())
    assert fedframe.Predictor.load(folder).classes


@pytest.mark.slow
def test_an_edited_file_has_to_be_allowed_again_or_used_as_changed(tmp_path: Path) -> None:
    net = own_net(tmp_path)
    folder = run(f"{net}:Net", tmp_path / "run").folder
    net.write_text(NET + "\n# edited\n")
    with pytest.raises(DataError, match="changed since"):
        fedframe.Predictor.load(folder)
    assert fedframe.Predictor.load(folder, changed_code=True).classes


@pytest.mark.slow
def test_changed_code_allows_nothing_that_was_never_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = own_net(tmp_path)
    folder = run(f"{net}:Net", tmp_path / "run").folder
    forget(monkeypatch, tmp_path)
    with pytest.raises(SettingError, match="nobody here has allowed"):
        fedframe.Predictor.load(folder, changed_code=True)


def test_the_same_code_in_another_place_is_the_same(tmp_path: Path) -> None:
    net = own_net(tmp_path)
    copy = Path(shutil.copytree(net.parent, tmp_path / "copy")) / "net.py"
    assert allowed_code.digest_of(str(net)) == allowed_code.digest_of(str(copy))
    copy.write_text(NET + "import os\n")
    assert allowed_code.digest_of(str(net)) != allowed_code.digest_of(str(copy))


def test_what_a_file_imports_is_part_of_its_digest(tmp_path: Path) -> None:
    net = own_net(tmp_path)
    net.write_text("import beside\n" + NET)
    (net.parent / "beside.py").write_text("A = 1\n")
    before = allowed_code.digest_of(str(net))
    (net.parent / "beside.py").write_text("A = 2\n")
    assert allowed_code.digest_of(str(net)) != before


@pytest.mark.parametrize("name", ["fedavg", "mlp:8", "scaffold+etf", "dirichlet:0.1", "mlp:256x128", "auto", "python"])
def test_names_of_our_own_need_no_permission(name: str) -> None:
    allowed_code.check_named(name)


@pytest.mark.parametrize("name", ["http.server:test", "os:system", "posix:system", "no_such_module:Net", "fedavg+os:x"])
def test_modules_need_permission_whatever_they_are(name: str) -> None:
    with pytest.raises(SettingError, match="nobody here has allowed"):
        allowed_code.check_named(name)


def test_allowing_something_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no file"):
        fedframe.allow_code(tmp_path / "none.py")
    with pytest.raises(SettingError, match="neither a file"):
        fedframe.allow_code("not a module!")


def test_a_home_that_cannot_be_written_to_only_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    net = own_net(tmp_path)
    fedframe.allow_code(net)
    allowed_code.check_named(f"{net}:Net")
    assert os.environ[allowed_code.PASSED_ON]


def test_looking_for_a_module_imports_no_package_above_it() -> None:
    sys.modules.pop("wsgiref", None)
    assert find_module("wsgiref.simple_server") is not None
    assert "wsgiref" not in sys.modules
    assert find_module("wsgiref.none") is None
    assert find_module("no_such.module") is None


def test_the_option_may_stand_anywhere() -> None:
    words = ["fedframe", "resume", "run", "--allow-code", "a.py", "--quiet", "--allow-code=b"]
    assert permissions_first(words) == [
        "fedframe",
        "--allow-code",
        "a.py",
        "--allow-code=b",
        "resume",
        "run",
        "--quiet",
    ]


def test_a_kit_that_names_code_is_refused_before_anything_of_it_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    import numpy as np
    import torch

    from fedframe.data.spec import DataSchema
    from fedframe.federation.agreement import Agreement
    from fedframe.federation.join import Membership
    from fedframe.federation.kit import Kit
    from fedframe.settings import check

    net = own_net(tmp_path)
    data = blobs(clients=1)
    np.savez(tmp_path / "x.npz", x=data["x_train"], y=data["y_train"])
    form = DataSchema(("0", "1", "2"), (5,), None, torch.zeros(5), torch.ones(5))
    settings = check({"model": f"{net}:Net", "rounds": 1})
    kit = Kit("north", Agreement("clinic", "localhost", 8443, ("north", "south"), form, settings), b"", b"")
    with pytest.raises(SettingError, match="nobody here has allowed"):
        Membership(kit, f"npz:{tmp_path / 'x.npz'}", tmp_path / "node")
    assert not net.with_suffix(".ran").exists()
    fedframe.allow_code(net)
    Membership(kit, f"npz:{tmp_path / 'x.npz'}", tmp_path / "node")
    assert net.with_suffix(".ran").exists()
