"""Methods of the user's own: the page's examples as they are written, from any folder, in any process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedframe
from fedframe.cli.listing import print_method
from fedframe.errors import FedframeError, SettingError
from fedframe.methods.recipes import make_method, recipe_defaults
from fedframe.network.compatibility import check_summable
from fedframe.report.page.build import write_page
from fedframe.util.files import read_json

PAGE = Path(__file__).parents[2] / "docs" / "own-method.md"
SMALL: dict[str, Any] = {"clients": 4, "rounds": 2, "progress": False}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files in a folder of their own, which is the current one."""
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        name = block.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_smoothing_by_nothing_is_fedavg(files: Path) -> None:
    plain = fedframe.run("fedavg", out="plain", workers=1, **SMALL)
    none = fedframe.run("smooth.py:Smooth", out="none", workers=1, set={"smooth": {"amount": 0.0}}, **SMALL)
    some = fedframe.run("smooth.py:Smooth", out="some", workers=1, **SMALL)
    assert (none.folder / "model.safetensors").stat().st_size > 0
    assert none.summary["scores"] == plain.summary["scores"]
    assert [line["loss"] for line in none.history] == [line["loss"] for line in plain.history]
    assert some.history[0]["loss"] != plain.history[0]["loss"]


@pytest.mark.slow
def test_the_pages_control_variates_at_rate_zero_are_fedavg(files: Path) -> None:
    plain = fedframe.run("fedavg", out="plain", workers=1, **SMALL)
    none = fedframe.run("steady.py:Steady", out="none", workers=1, set={"steady": {"rate": 0.0}}, **SMALL)
    some = fedframe.run("steady.py:Steady", out="some", workers=1, set={"steady": {"rate": 0.5}}, **SMALL)
    assert [line["loss"] for line in none.history] == [line["loss"] for line in plain.history]
    assert some.history[0]["loss"] == plain.history[0]["loss"]  # all variates are zero in the first round
    assert some.history[1]["loss"] != plain.history[1]["loss"]


@pytest.mark.slow
def test_the_pages_server_state_is_the_mean_of_what_clients_remember(files: Path) -> None:
    fedframe.run("steady.py:Steady", out="run", workers=1, set={"steady": {"rate": 0.5}}, **SMALL, participation=0.5)
    state = load_file("run/checkpoint.safetensors")["state/steady/gradient"]
    kept = [load_file(max(folder.iterdir()))["steady/gradient"] for folder in Path("run/clients/000").iterdir()]
    assert 2 <= len(kept) <= 4
    torch.testing.assert_close(state.double(), torch.stack(kept).double().sum(0) / 4, rtol=1e-4, atol=1e-6)


def test_a_setting_without_a_default_must_be_given(files: Path) -> None:
    with pytest.raises(SettingError, match=r"needs steady\.rate, which has no default; add --set steady\.rate=0\.1"):
        fedframe.run("steady.py:Steady", out="run", **SMALL)
    with pytest.raises(SettingError, match=r"steady\.rate = 'fast': .*; try 0\.1\."):
        make_method("steady.py:Steady", {"steady": {"rate": "fast"}})
    made = make_method("scaffold+steady.py:Steady", {"steady": {"rate": 1}})
    assert next(vars(part) for part in made.parts if part.name == "steady") == {"rate": 1.0}
    assert recipe_defaults("steady.py:Steady") == {}
    check_summable(made)


def test_a_setting_without_a_default_is_shown_as_required(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_method("steady.py:Steady")
    assert "--set steady.rate=REQUIRED" in capsys.readouterr().out


@pytest.mark.slow
def test_workers_resume_and_prediction_find_the_file_from_anywhere(
    files: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = fedframe.run("scaffold+smooth.py:Smooth", out="one", workers=1, **SMALL)
    two = fedframe.run("scaffold+smooth.py:Smooth", out="two", workers=2, **SMALL)
    assert one.summary["scores"] == two.summary["scores"]
    (files / "two" / "summary.json").unlink()  # as if it had been killed before the end
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    again = fedframe.resume(files / "two", progress=False)
    assert again.summary["scores"] == one.summary["scores"]
    assert read_json(files / "two" / "summary.json")["method"] == f"scaffold+{files / 'smooth.py'}:Smooth"
    assert fedframe.Predictor.load(files / "two").classes[0] == "0"


@pytest.mark.slow
def test_a_run_without_a_name_is_called_after_the_class(files: Path) -> None:
    assert fedframe.run("fedprox+smooth.py:Smooth", workers=1, **SMALL).folder == Path("runs/fedprox+Smooth-digits-1")


def test_a_recipe_brings_its_settings(files: Path) -> None:
    assert recipe_defaults("calm.py:CALM") == {"lr": 0.05, "epochs": 2}
    parts = {part.name: part for part in make_method("calm.py:CALM", {"prox": {"mu": 0.5}}).parts}
    assert (vars(parts["smooth"]), vars(parts["prox"])) == ({"amount": 0.05}, {"mu": 0.5})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("smooth.py", "names a file but no class"),
        ("smooth.py:Smoth", "did you mean 'Smooth'"),
        ("none.py:Smooth", "there is no file"),
        ("smooth.py:dataclass", "is of another kind"),
        ("smooth.py:Smooth+fedetf", "loss"),
    ],
)
def test_what_cannot_work_is_refused_by_name(files: Path, text: str, said: str) -> None:
    with pytest.raises(FedframeError, match=said):
        make_method(text, {})


def test_settings_of_own_parts_are_checked(files: Path) -> None:
    with pytest.raises(SettingError, match=r"smooth\.amount = 'much'"):
        make_method("smooth.py:Smooth", {"smooth": {"amount": "much"}})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("class Mine(Part):\n    name = 'mine'\n    share: float = 0.5", "write @dataclass"),
        ("class Mine(Part):\n    pass", "has no name"),
        ("class Mine(Part):\n    name = 'prox'", "is taken"),
    ],
)
def test_mistakes_in_a_class_are_named(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(f"from fedframe import Part\n\n{line}\n")
    with pytest.raises(SettingError, match=said):
        make_method(f"{tmp_path / 'mine.py'}:Mine", {})


def test_data_with_one_class_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("a,b,label\n" + "1,2,x\n2,3,x\n" * 40)
    with pytest.raises(FedframeError, match=r"All labels of .* are 'x'"):
        fedframe.run("fedavg", data=f"csv:{tmp_path / 'one.csv'}", clients=2, out=tmp_path / "run", progress=False)


def test_a_file_without_its_class_is_named_with_the_one_it_has(files: Path) -> None:
    with pytest.raises(SettingError, match=re.escape("write for example 'smooth.py:Smooth'.")):
        make_method("smooth.py", {})


def test_files_are_shown_as_they_can_be_opened_from_here(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "below").mkdir()
    for here, method in ((files, "calm.py:CALM"), (files / "below", f"fedavg+{files / 'calm.py'}:CALM")):
        monkeypatch.chdir(here)
        print_method(method)
        shown = [line.strip().removeprefix("Recipe: ") for line in capsys.readouterr().out.splitlines()]
        paths = [line for line in shown if line.endswith(".py")]
        assert {Path(path).name for path in paths} >= {"calm.py", "smooth.py", "prox.py"}
        assert all(Path(path).is_file() for path in paths)


@pytest.mark.slow
def test_a_result_shows_its_scores_and_folder_in_one_line(files: Path) -> None:
    result = fedframe.run("fedavg", out="plain", workers=1, **SMALL)
    assert re.fullmatch(r"Result\('plain', scores=\{'generic': '\d+\.\d %'.*\}\)", repr(result))


@pytest.mark.slow
def test_rounds_that_change_nothing_are_noted(files: Path) -> None:
    Path("still.py").write_text(
        "from fedframe import Part\n\n\nclass Still(Part):\n    name = 'still'\n\n"
        "    def correct(self, context):\n        for weights in context.named.values():\n"
        "            weights.grad.zero_()\n"
    )
    still = fedframe.run("still.py:Still", out="still", workers=1, weight_decay=0, **SMALL)
    assert "Round 1: the shared model has not changed at all" in (still.folder / "log.txt").read_text()
    plain = fedframe.run("fedavg", out="plain", workers=1, **SMALL)
    assert not (plain.folder / "log.txt").exists() or "not changed" not in (plain.folder / "log.txt").read_text()


def test_a_report_of_a_run_without_a_finished_round_is_refused(files: Path) -> None:
    Path("odd.py").write_text(
        "from fedframe import Part\n\n\nclass Odd(Part):\n    name = 'odd'\n\n"
        "    def begin(self, context):\n        1 / 0\n"
    )
    with pytest.raises(FedframeError, match="ZeroDivisionError"):
        fedframe.run("odd.py:Odd", out="odd", workers=1, **SMALL)
    with pytest.raises(FedframeError, match="odd has no finished round yet"):
        write_page([Path("odd")], None, quick=True)


@pytest.mark.parametrize(("name", "said"), [("fedprx", "did you mean 'fedprox'"), ("quux", "choose one of")])
def test_a_name_that_is_near_to_none_is_not_guessed(name: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        make_method(name, {})
