"""What a run depends on beside its settings: recorded, and compared when it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedframe
from fedframe.errors import DataError, SettingError
from fedframe.jobs.gather import gather
from fedframe.jobs.inputs import InputFinder, code_digest
from fedframe.report.page.build import write_page
from fedframe.runs.progress import Display
from fedframe.util.code_files import code_files
from fedframe.util.locate import locate
from tests.own_code import HELPER, SMALL, write_own


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which is the current one."""
    monkeypatch.chdir(write_own(tmp_path))
    return tmp_path


class StopAfterOne(Display):
    """Stops a run after its first round, as Ctrl-C does."""

    def round(self, record: Any) -> None:
        raise KeyboardInterrupt


def stopped(**given: Any) -> Path:
    """The folder of a run that was stopped after one round."""
    asked = {**SMALL, "data": "npz:mine.npz", "model": "net.py:Net", "out": "run", "progress": StopAfterOne(), **given}
    with pytest.raises(KeyboardInterrupt):
        fedframe.run("mine.py:Decay", **asked)
    return Path("run")


@pytest.mark.slow
def test_record_names_every_file_of_ones_own(own: Path) -> None:
    folder = stopped()
    files = json.loads((folder / "inputs.json").read_text())["files"]
    names = [str(own / name) for name in ("helper.py", "mine.npz", "mine.py", "net.py")]
    assert [file["path"] for file in files] == names
    assert [file["size"] for file in files] == [Path(name).stat().st_size for name in names]
    assert all(len(file["blake2b"]) == 32 and file["mtime_ns"] > 0 for file in files)
    fedframe.run("fedavg", data="digits", model="mlp:4", rounds=1, clients=2, workers=1, out="plain", progress=False)
    assert not Path("plain/inputs.json").exists()


@pytest.mark.slow
def test_run_goes_on_from_any_folder_while_nothing_changed(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped()
    (own / "elsewhere").mkdir()
    monkeypatch.chdir(own / "elsewhere")
    write_own(own)  # written again, with the same content
    assert len(fedframe.resume(own / "run", progress=False).history) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["helper.py", "mine.py", "net.py", "mine.npz"])
def test_changed_file_is_named_and_refused(own: Path, name: str) -> None:
    folder = stopped()
    (own / name).write_bytes((own / name).read_bytes() + (b"\n" if name.endswith("py") else b""))
    if name == "mine.npz":
        write_own(own, seed=3)
    with pytest.raises(DataError, match=f"{name} changed since run was begun; .* --changed-code"):
        fedframe.resume(folder, progress=False)


@pytest.mark.slow
def test_changed_code_goes_on_when_asked_and_is_recorded(own: Path) -> None:
    folder = stopped()
    (own / "helper.py").write_text(HELPER.format(strength=3.0))
    assert len(fedframe.resume(folder, changed_code=True, progress=False).history) == 2
    record = json.loads((folder / "inputs.json").read_text())
    assert [each["until_round"] for each in record["before"]] == [1]
    assert record["files"][0]["blake2b"] != record["before"][0]["files"][0]["blake2b"]
    assert "although" in (folder / "log.txt").read_text()
    changes = json.loads((folder / "summary.json").read_text())["changed_code"]
    assert changes == [{"after_round": 1, "files": [str(own / "helper.py")]}]
    page = write_page([folder], quick=True, notify=lambda text: None).read_text()
    assert f"{own / 'helper.py'} after round 1" in page
    write_own(own, strength=9.0)
    assert fedframe.resume(folder, progress=False).summary["rounds"] == 2  # it is finished: nothing is trained with it


@pytest.mark.slow
def test_run_of_an_earlier_version_goes_on_as_it_is(own: Path) -> None:
    folder = stopped()
    (folder / "inputs.json").unlink()
    (own / "helper.py").write_text(HELPER.format(strength=3.0))
    assert len(fedframe.resume(folder, changed_code=True, progress=False).history) == 2


def test_images_of_folders_and_lists_count_by_names_sizes_and_times(own: Path) -> None:
    for label in ("a", "b"):
        (own / "pictures" / label).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.zeros((4, 4), np.uint8)).save(own / "pictures" / label / f"{number}.png")
    lines = [f"pictures/{label}/{number}.png {label}" for label in "ab" for number in range(3)]
    (own / "list.txt").write_text("\n".join(lines))
    (own / "test.txt").write_text("\n".join(lines[:2]))

    def found() -> list[tuple[str, ...]]:
        specs = ("imagefolder:pictures", "list:list.txt?test=test.txt")
        return [tuple(e.blake2b for e in InputFinder().find(gather({"data": spec}, None))) for spec in specs]

    before = found()
    assert [len(each) for each in before] == [1, 3]
    assert found() == before
    Image.fromarray(np.ones((5, 5), np.uint8)).save(own / "pictures" / "a" / "0.png")
    changed = [[one != two for one, two in zip(*pair, strict=True)] for pair in zip(before, found(), strict=True)]
    assert [sum(each) for each in changed] == [1, 1]


def test_imports_of_packages_and_of_other_folders(own: Path) -> None:
    package = own / "kit"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "deep" / "__init__.py").write_text("from . import last\n")
    (package / "deep" / "last.py").write_text("import json\n")
    (package / "parts.py").write_text("import torch\nfrom .deep import last\nfrom fedframe import Part\n")
    (own / "user.py").write_text("import kit.parts\nimport numpy\n")
    names = ["kit/__init__.py", "kit/deep/__init__.py", "kit/deep/last.py", "kit/parts.py", "user.py"]
    assert code_files("user.py") == [own / name for name in names]
    assert code_files("kit.parts") == [own / name for name in names[:4]]
    assert code_files("no_such_module_at_all") == []
    (own / "user.py").write_text("this is no Python")
    assert code_files("user.py") == [own / "user.py"]


@pytest.mark.parametrize("kit", ["marked_kit", "namespace_kit"])  # names of their own: Python keeps loaded packages
def test_imports_of_a_package_are_followed_from_the_folder_above_it(own: Path, kit: str) -> None:
    """With `__init__.py` in the folders, and as namespace packages without."""
    marked = kit == "marked_kit"
    (own / kit / "sub").mkdir(parents=True)
    marks = [f"{kit}/__init__.py", f"{kit}/sub/__init__.py"] if marked else []
    for name in marks:
        (own / name).write_text("")
    (own / kit / "other.py").write_text("import beside_kit\n")
    (own / "beside_kit.py").write_text("import torch\n")
    (own / kit / "parts.py").write_text(f"from {kit}.other import A\n")
    (own / kit / "sub" / "deep.py").write_text("from ..other import A\n")
    names = ["beside_kit.py", *marks[:1], f"{kit}/other.py", f"{kit}/parts.py"]
    assert code_files(f"{kit}.parts") == [own / name for name in names]
    if marked:  # a file alone does not say that its folder is a package
        assert code_files(f"{kit}/parts.py") == [own / name for name in names]
    wanted = ["beside_kit.py", *marks[:1], f"{kit}/other.py", *marks[1:], f"{kit}/sub/deep.py"]
    assert code_files(f"{kit}.sub.deep") == [own / name for name in wanted]


def test_other_packages_beside_an_installed_one_are_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    for name in ("mine_installed", "others_installed"):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text("")
    (place / "mine_installed" / "parts.py").write_text("import others_installed\nimport mine_installed\n")
    monkeypatch.syspath_prepend(place)
    names = ["__init__.py", "parts.py"]
    assert code_files("mine_installed.parts") == [place / "mine_installed" / name for name in names]


def test_digest_of_code_changes_with_what_it_does() -> None:
    def one(x: int) -> bool:
        return x in {1, 2, 3}

    def same(x: int) -> bool:
        # a remark
        return x in {1, 2, 3}

    def other(x: int) -> bool:
        return x in {1, 2, 4}

    assert code_digest(one) == code_digest(same) != code_digest(other)


MADE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Made:
    amount: float = 1.0

    def twice(self):
        return {factor} * self.amount
"""


def test_code_that_exec_made_is_told_from_what_a_dataclass_makes() -> None:
    """Both have the file name `<string>`."""

    def digest(factor: int) -> str:
        namespace: dict[str, Any] = {"__name__": "a_notebook"}
        exec(compile(MADE.format(factor=factor), "<string>", "exec", dont_inherit=True), namespace)
        return code_digest(namespace["Made"])

    assert digest(2) == digest(2) != digest(3)


CODE = """
import math
from functools import partial

import numpy as np
import torch

import values

SCALE = {scale}
TABLE = {{"a": [{scale}, None], "b": {{"x", "y", "z"}}}}
TENSOR = torch.tensor([1.0, {scale}], dtype=torch.bfloat16)
ARRAY = np.array([1.0, {scale}])
CYCLE = [{scale}]
CYCLE.append(CYCLE)

class Holder:
    def __init__(self, amount):
        self.amount, self.me = amount, self

    def get(self):
        return self.amount

HOLDER = Holder({scale})
PARTIAL = partial(math.pow, {scale})
UNUSED = {unused}

def helper():
    return SCALE

def closed(cell):
    return lambda: cell

uses_number = lambda: SCALE
uses_table = lambda: TABLE
uses_tensor = lambda: TENSOR
uses_array = lambda: ARRAY
uses_cycle = lambda: CYCLE
uses_object = lambda: HOLDER.get()
uses_partial = lambda: PARTIAL(2)
uses_helper = lambda: [helper() for _ in range(2)]
uses_nested = lambda: [SCALE + number for number in range(2)]
uses_module = lambda: values.STRENGTH
uses_cell = closed({scale})
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [line.split()[0] for line in CODE.splitlines() if line.startswith("uses_")])
def test_digest_of_code_changes_with_the_values_that_it_uses(own: Path, name: str) -> None:
    def digest(scale: float, unused: int = 0) -> str:
        (own / "values.py").write_text(f"STRENGTH = {scale}\n")
        (own / "code.py").write_text(CODE.format(scale=scale, unused=unused))
        return code_digest(locate(f"{own / 'code.py'}:{name}"))

    assert digest(0.0) == digest(0.0, unused=1) != digest(0.5)


@pytest.mark.slow
def test_digest_of_code_is_the_same_in_every_process(own: Path) -> None:
    (own / "values.py").write_text("STRENGTH = 1\n")
    (own / "code.py").write_text(CODE.format(scale=0.5, unused=0))
    names = [line.split()[0] for line in CODE.splitlines() if line.startswith("uses_")]
    program = (
        "from fedframe.jobs.inputs import code_digest; from fedframe.util.locate import locate\n"
        f"print(*(code_digest(locate('code.py:' + name)) for name in {names}))"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(said[0].split()) == len(names)


@pytest.mark.slow
def test_changed_code_that_cannot_run_leaves_the_refusal(own: Path) -> None:
    folder = stopped()
    before = (folder / "inputs.json").read_text()
    (own / "mine.py").write_text("bar\n")
    with pytest.raises(SettingError, match=r"NameError: name 'bar' is not defined \(.*mine.py, line 1\)"):
        fedframe.resume(folder, changed_code=True, progress=False)
    assert (folder / "inputs.json").read_text() == before
