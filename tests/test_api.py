"""Run and resume from Python: methods as objects, and results that show themselves."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from torch import Tensor

import fedframe
from fedframe.core.client_context import ClientContext
from fedframe.errors import DataError, SettingError
from fedframe.methods import recipes
from fedframe.methods.parts.prox import Prox
from fedframe.runs.progress import Display
from tests.helpers import blobs

SMALL: dict[str, Any] = {"rounds": 2, "model": "mlp:8", "batch": 8, "epochs": 1, "workers": 1, "progress": False}


@dataclass(frozen=True)
class Decay(fedframe.Part):
    """A penalty on the weights, defined where a notebook would define it."""

    name: ClassVar[str] = "decay"
    amount: float = 0.01

    def penalty(self, context: ClientContext) -> Tensor:
        return self.amount * torch.stack([weights.square().sum() for weights in context.model.parameters()]).sum()


@dataclass(frozen=True)
class Listed(fedframe.Part):
    """A setting that has no hash."""

    name: ClassVar[str] = "listed"
    amounts: list[int] = field(default_factory=list)

    def begin(self, context: ClientContext) -> None:
        assert self.amounts


@dataclass(frozen=True)
class Bounded(Decay):
    """A part that checks its own settings."""

    name: ClassVar[str] = "bounded"

    def __post_init__(self) -> None:
        if self.amount > 1:
            raise ValueError("the amount is too big.")


GENTLE = fedframe.Recipe("gentle", "Hardly any decay.", parts=(Decay(0.001), Prox(0.2)), defaults={"lr": 0.05})


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(method: Any, **given: Any) -> fedframe.Result:
    return fedframe.run(method, **{"data": blobs(), **SMALL, **given})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "recorded"),
    [
        (Decay(0.2), "python:Decay(amount=0.2)"),
        (Decay, "python:Decay(amount=0.01)"),
        (GENTLE, "python:gentle(Decay(amount=0.001), Prox(mu=0.2))"),
        (["scaffold", Decay(0.2)], "scaffold+python:Decay(amount=0.2)"),
        (Decay(1e20), "python:Decay(amount=1e%2B20)"),
        (Listed([2, 1]), "python:Listed(amounts=[2, 1])"),
        (fedframe.Recipe("plain", "A class for a part.", parts=(Decay,)), "python:plain(Decay(amount=0.01))"),  # type: ignore[arg-type]
    ],
)
def test_method_may_be_an_object(method: Any, recorded: str) -> None:
    if recorded.endswith("B20)"):
        assert recipes.method_text(method) == recorded
        return
    result = run(method)
    assert result.settings.method == recorded
    assert yaml.safe_load((result.folder / "config.yaml").read_text())["method"] == recorded
    assert result.summary["method"] == recorded
    assert len(result.model.predict(blobs()["x_test"][:3])) == 3
    assert len(result.personalise(blobs(clients=1), name="late", progress=False).model.predict(blobs()["x_test"])) == 60


@pytest.mark.slow
def test_object_trains_as_the_name_does() -> None:
    named = run("scaffold+prox", set={"prox": {"mu": 0.5}}, out="named")
    object_ = run(["scaffold", Prox(0.5)], out="object")
    changed = run(["scaffold", Prox], set={"mu": 0.5}, out="changed")
    for score in ("generic", "client", "personal"):
        assert named.scores[score] == object_.scores[score] == changed.scores[score]
    assert run(GENTLE).settings.lr == 0.05
    assert run(Prox(0.5)).folder == Path("runs/Prox-mu=0.5-python-1")


class StopAfterOne(Display):
    """Stops a run after its first round, as Ctrl-C does."""

    def round(self, record: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_object_is_given_again_where_the_process_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(Decay(0.2), out="whole")
    with pytest.raises(KeyboardInterrupt):
        run(Decay(0.2), out="run", progress=StopAfterOne())
    monkeypatch.setattr(recipes, "_OBJECTS", {})  # as in another process
    with pytest.raises(SettingError, match=r"Decay\(amount=0.2\) came from Python; give it again there, as method="):
        fedframe.resume("run", data=blobs(), progress=False)
    with pytest.raises(SettingError, match=r"The run's method is python:Decay\(amount=0.2\), not python:Decay\(amou"):
        fedframe.resume("run", data=blobs(), method=Decay(0.3), progress=False)
    found = fedframe.resume("run", data=blobs(), method=Decay(0.2), progress=False)
    assert found.scores == whole.scores
    monkeypatch.setattr(recipes, "_OBJECTS", {})
    with pytest.raises(SettingError, match="came from Python"):
        fedframe.Predictor.load("run")
    assert fedframe.Predictor.load("run", method=Decay(0.2)).classes == ("0", "1", "2")
    monkeypatch.setattr(recipes, "_OBJECTS", {})
    late = fedframe.personalise("run", blobs(clients=1), name="late", method=Decay(0.2), progress=False)
    assert late.scores["personal"] is not None
    monkeypatch.setattr(recipes, "_OBJECTS", {})
    assert fedframe.measure.examine("run", data=blobs(), method=Decay(0.2), samples=20, embedding="pca")["classes"]


@pytest.mark.slow
def test_changed_class_is_refused_without_changed_code() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Decay(0.2), out="run", progress=StopAfterOne())

    again = edited_decay()
    with pytest.raises(DataError, match="python:Decay changed since run was begun"):
        fedframe.resume("run", data=blobs(), method=again(0.2), progress=False)
    fedframe.resume("run", data=blobs(), method=again(0.2), changed_code=True, progress=False)


def edited_decay() -> Any:
    """The same part after its notebook cell was edited and run again."""

    @dataclass(frozen=True)
    class Decay(fedframe.Part):
        name: ClassVar[str] = "decay"
        amount: float = 0.01

        def penalty(self, context: ClientContext) -> Tensor:
            return 100 * self.amount * torch.stack([w.square().sum() for w in context.model.parameters()]).sum()

    return Decay


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (None, "method = None is of another kind"),
        (3, "method = 3 is of another kind; give a name, a part"),
        ([], "is of another kind"),
        (Decay("much"), "decay.amount = 'much'"),  # type: ignore[arg-type]
        (["fedprox", Prox(0.5)], "brings 'prox' twice"),
        ("nothing", "There is no method 'nothing'"),
        ([Listed([1]), Listed([2])], "brings 'listed' twice with different settings"),
    ],
)
def test_what_is_no_method_is_one_sentence(method: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        run(method)


@pytest.mark.parametrize(
    ("amount", "said"), [(0.2, "two classes are called Decay"), (0.3, "two parts of the name 'decay'")]
)
def test_two_classes_of_one_name_are_told_from_two_settings(amount: float, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        run([Decay(0.2), edited_decay()(amount)])


def test_what_a_part_itself_says_of_its_settings_is_one_sentence() -> None:
    said = r"^The part 'bounded' refuses its settings: the amount is too big \(bounded\.amount = 7\.0\)\.$"
    with pytest.raises(SettingError, match=said):
        run(Bounded, set={"bounded": {"amount": 7.0}})


def test_recipe_of_what_is_no_part_is_one_sentence() -> None:
    with pytest.raises(SettingError, match=r"Recipe 'mine': parts = 'prox' is no part; give parts=\(MyPart\(\),\)"):
        fedframe.Recipe("mine", "A name for a part.", parts=("prox",))  # type: ignore[arg-type]


def test_other_processes_cannot_make_an_object() -> None:
    with pytest.raises(SettingError, match=r"came from Python; put it into a file .* or use engine = local"):
        run(Decay(0.2), engine="flower")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"muu": 1}, "No part here has a setting 'muu'; did you mean 'mu'"),
        (
            {"lr": 1},
            "'lr' is a setting of the run: give it as --lr 1, or as --set fine_tune.lr=1 for that of fine_tune",
        ),
        ({"prox": 1}, "write set: {prox: {mu: 1}}, or --set prox.mu=1"),
        ({"rounds": 1}, "'rounds' is a setting of the run: give it as --rounds 1$"),
    ],
)
def test_bare_name_of_a_setting_that_does_not_do(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        run("fedprox", set=given)


@pytest.mark.slow
def test_bare_name_of_a_setting_is_that_of_the_one_part_that_has_it() -> None:
    assert run("fedprox", set={"mu": 0.5}).settings.set == {"prox": {"mu": 0.5}}
    assert run("fedprox", set={"prox.mu": 0.5}).settings.set == {"prox": {"mu": 0.5}}
    Path("my.yaml").write_text("set: {mu: 0.25}\n")
    assert run("fedprox", config="my.yaml").settings.set == {"prox": {"mu": 0.25}}
    with pytest.raises(SettingError, match=r"'mu' is a setting of several parts; write prox.mu or .*\.mu"):
        run("fedprox+moon", set={"mu": 1})


@pytest.mark.parametrize("device", ["mps", "cuda", "cuda:7", "cuda:x", "cpu:4", "gpu"])
def test_device_that_is_not_here_is_one_sentence(device: str) -> None:
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine has another device")
    with pytest.raises(SettingError, match=f"device = '{device}' is not available on this machine; use cpu"):
        run("fedavg", device=device)


@pytest.mark.slow
def test_result_shows_itself_in_a_notebook_and_makes_page_and_figure() -> None:
    result = run(Decay(0.2), model=torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU()))
    shown = result._repr_html_()
    assert "accuracy of the shared model on the global test set" in shown
    assert f"{100 * float(result.scores['generic']['final'] or 0):.1f} %" in shown
    assert str(result.folder) in shown
    assert "Decay(amount=0.2) on python: 4 clients, 2 rounds" in shown
    page = result.report()
    assert page == result.folder / "report.html"
    assert (result.folder / "examination.json").exists()  # data and net from Python were given along
    assert result.report("other.html", quick=True) == Path("other.html")
    figure = result.plot()
    assert figure.axes[0].get_ylabel() == "accuracy (%)"
    result.plot(out="curves.png")
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_one_round_is_not_plural() -> None:
    assert "4 clients, 1 round, seed 0" in run("fedavg", rounds=1)._repr_html_()


STRENGTH = 0.01


@dataclass(frozen=True)
class Pull(fedframe.Part):
    """A penalty whose strength is a global, as notebooks have it."""

    name: ClassVar[str] = "pull"

    def penalty(self, context: ClientContext) -> Tensor:
        return STRENGTH * torch.stack([weights.square().sum() for weights in context.model.parameters()]).sum()


@pytest.mark.slow
def test_changed_global_is_compared_anew(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def finished_before() -> str:
        asked = {**SMALL, "workers": None, "progress": True}
        fedframe.compare(["fedavg", Pull()], seeds=1, data=blobs(), out="c", cores=1, **asked)
        printed = capfd.readouterr()
        return next(word for word in "012" if f"2 runs, {word} of them finished before" in printed.out + printed.err)

    assert [finished_before(), finished_before()] == ["0", "2"]
    monkeypatch.setattr(sys.modules[__name__], "STRENGTH", 0.5)
    assert finished_before() == "1"


@pytest.mark.slow
def test_comparison_shows_itself_in_a_notebook() -> None:
    found = fedframe.compare(
        ["fedavg", Decay(0.2)], seeds=1, data=blobs(), out="c", cores=1, **{**SMALL, "workers": None}
    )
    assert "<table>" in found._repr_html_()
    assert "Decay(amount=0.2)" in found._repr_html_()
