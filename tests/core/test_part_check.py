"""What an author of a part can get wrong: nothing is ignored, and every mistake is one sentence that names it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import fedframe
from fedframe.core.part import HOOKS, Part, filled_slots
from fedframe.core.part_check import check_part
from fedframe.errors import RunError, SettingError
from fedframe.methods.parts import PARTS
from fedframe.methods.recipes import RECIPES, make_method

HEAD = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from fedframe import Merger, ModelSize, Part, State, Upload


@dataclass(frozen=True)
class Mine(Part):
    name: ClassVar[str] = "mine"
"""


def written(folder: Path, body: str) -> str:
    """A file with a part of one's own, as a method's name."""
    (folder / "mine.py").write_text(HEAD + textwrap.indent(textwrap.dedent(body), "    "))
    return f"{folder / 'mine.py'}:Mine"


def run(method: str, folder: Path, workers: int = 1) -> fedframe.Result:
    return fedframe.run(method, out=folder / "run", clients=3, rounds=2, workers=workers, progress=False)


# -- what is overridden is used ----------------------------------------------------------------------------------------
HOOK_BODIES = {
    "loss": "def loss(self, logits, labels, context):\n    1 / 0",
    "merger": "def merger(self, server):\n    1 / 0",
    "server_step": "def server_step(self, server, updates):\n    1 / 0",
    "penalty": "def penalty(self, context):\n    1 / 0",
    "correct": "def correct(self, context):\n    1 / 0",
    "step": "def step(self, context):\n    1 / 0",
    "begin": "def begin(self, context):\n    1 / 0",
    "begin_epoch": "def begin_epoch(self, context, epoch):\n    1 / 0",
    "begin_batch": "def begin_batch(self, context):\n    1 / 0",
    "before_merge": "def before_merge(self, server, replies):\n    1 / 0",
    "transform": "def transform(self, model, features, context):\n    1 / 0",
    "finish": "def finish(self, context):\n    1 / 0",
    "after_merge": "def after_merge(self, server, clients):\n    1 / 0",
    "after_rounds": "def after_rounds(self, server):\n    1 / 0",
    "select_clients": "def select_clients(self, server, round, clients):\n    1 / 0",
    "server_state": "def server_state(self, server):\n    1 / 0",
    "build": "def build(self, model):\n    1 / 0",
    "build_head": "def build_head(self, model):\n    1 / 0",
    "check_settings": "def check_settings(self, settings):\n    1 / 0",
    "check_model": "def check_model(self, model, clients):\n    1 / 0",
    "check_method": "def check_method(self, method):\n    1 / 0",
    "private": "def private(self, model):\n    1 / 0",
    "uploads": "def uploads(self, size):\n    1 / 0",
    "predict": "def predict(self, model, features):\n    1 / 0",
    "personalise": "def personalise(self, context):\n    1 / 0",
    "head_stages": "def head_stages(self, method, model):\n    1 / 0",
    "server_stage": "def server_stage(self, server, replies):\n    1 / 0",
    "load_personal": "def load_personal(self, context):\n    1 / 0",
}
# Of `loss`, `server_stage` and what merges, called with them or at nodes.
COMPANIONS = {"stages", "row_losses", "round_losses", "probabilities", "statistics", "furthest"}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("hook", HOOK_BODIES)
def test_every_hook_is_called_and_its_error_names_file_line_and_hook(tmp_path: Path, hook: str, workers: int) -> None:
    method = written(tmp_path, HOOK_BODIES[hook])
    line = 1 + (tmp_path / "mine.py").read_text().splitlines().index("        1 / 0")
    with pytest.raises(RunError) as caught:
        run(method, tmp_path, workers)
    where = f"({tmp_path / 'mine.py'}, line {line}, in Mine.{hook})"
    assert str(caught.value).endswith(f"ZeroDivisionError: division by zero {where}")


def test_the_table_above_has_every_hook() -> None:
    assert {*HOOK_BODIES} | COMPANIONS == {*HOOKS}


def test_an_error_in_a_merger_names_its_method(tmp_path: Path) -> None:
    body = """
    def merger(self, server):
        class Odd:
            def add(self, reply, weight):
                {}["x"]
            def finish(self):
                return torch.zeros(server.layout.trainable)
        return Odd()
    """
    with pytest.raises(RunError) as caught:
        run(written(tmp_path, body), tmp_path)
    assert re.fullmatch(r"Round 1, server: KeyError: 'x' \(.*mine.py, line \d+, in .*Odd\.add\)", str(caught.value))


@pytest.mark.slow
def test_a_merger_sees_the_rounds_number_and_rate(tmp_path: Path) -> None:
    body = """
    def server_step(self, server, updates):
        server.figures["mine/round"], server.figures["mine/lr"] = server.current_round, server.lr
        return updates.mean()
    """
    result = fedframe.run(
        written(tmp_path, body), out=tmp_path / "r", clients=3, rounds=3, lr=0.2, lr_schedule="cosine", progress=False
    )
    assert [line["mine/round"] for line in result.history] == [1, 2, 3]
    assert [line["mine/lr"] for line in result.history] == [line["lr"] for line in result.history]
    assert result.history[2]["lr"] < 0.2


# -- what would be ignored is refused ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def penalti(self, context):\n    return 0", r"Mine\.penalti is no hook .*did you mean 'penalty'\?"),
        ("def losss(self, logits, labels, context):\n    return 0", r"did you mean 'loss'\?"),
        ("def loss(self, logits, labels):\n    return 0", r"Mine\.loss must take \(self, logits, labels, context\)"),
        ("def merger(self):\n    return 0", r"Mine\.merger must take \(self, server\)"),
        ("step: float = 0.1", r"Mine\.step has the name of a hook and is none"),
        ("loss = 3", r"Mine\.loss has the name of a hook and is none"),
        ("claims: ClassVar[set] = {'los'}", r"Mine\.claims is not used any more; leave it out"),
        ("remembers: ClassVar[bool] = True", r"Mine\.remembers is not used any more; name what is kept"),
        ("def absorb(self, server, reply, weight):\n    pass", r"Mine\.absorb is not used any more; .*server\.total"),
        ("def statistics(self, context):\n    return {}", r"statistics would never be called: override 'server_stage'"),
        ("def row_losses(self, logits, labels, contexts):\n    return 0", r"override 'loss' too"),
        (
            "def merger(self, server):\n    return 0\n\ndef server_step(self, server, updates):\n    return 0",
            r"of which a method uses one",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        make_method(written(tmp_path, body), {})


@pytest.mark.parametrize(
    "body",
    [
        "def _helper(self):\n    return 0\n\ndef penalty(self, context):\n    return context.logits.sum()",
        "def half(self):\n    return 0.5\n\ndef penalty(self, context):\n    return self.half() * context.logits.sum()",
        "@property\ndef strength(self):\n    return 0.0\n\ndef begin(self, context):\n    self.strength",
        "@staticmethod\ndef half():\n    return 0.5\n\ndef penalty(self, context):\n    return Mine.half()",
    ],
)
def test_helpers_are_not_taken_for_hooks(tmp_path: Path, body: str) -> None:
    assert [part.name for part in make_method(written(tmp_path, body), {}).parts].count("mine") == 1


def test_slots_follow_from_hooks(tmp_path: Path) -> None:
    method = make_method(written(tmp_path, "def loss(self, logits, labels, context):\n    return logits.sum()"), {})
    assert method.slot("loss").name == "mine"
    with pytest.raises(SettingError, match="both claim the loss slot"):
        make_method(f"fedrs+{tmp_path / 'mine.py'}:Mine", {})
    assert filled_slots(Part) == set()


@pytest.mark.slow
def test_parts_of_recipes_pass_the_same_check() -> None:
    for name in RECIPES:
        make_method(name, {})
    for part in PARTS.values():
        check_part(part)


# -- what is sent or kept is declared ----------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "def finish(self, context):\n    context.reply['mine/x'] = torch.zeros(2)",
            r"The part 'mine' sends 'mine/x' without declaring it; add it to the part's 'uploads'",
        ),
        (
            "def finish(self, context):\n    context.reply['mine/x'] = torch.zeros(2)\n\n"
            "def uploads(self, size):\n    return {'mine/x': Upload([3], 'sum')}",
            r"sends 'mine/x' with shape \(2,\), and its 'uploads' declares \(3,\)",
        ),
        (
            "def uploads(self, size):\n    return {'mine/x': Upload([3], 'sum')}",
            r"The part 'mine' declares 'mine/x' in 'uploads' and does not send it",
        ),
        (
            "def finish(self, context):\n    context.memory['mine/x'] = torch.zeros(2)",
            r"The part 'mine' keeps 'mine/x' in a client's memory without declaring it",
        ),
        (
            "def after_merge(self, server, clients):\n    server.state['mine/x'] = torch.zeros(2)",
            r"The part 'mine' keeps 'mine/x' in server.state without declaring it; return it from .*"
            r"\(.*mine\.py, line 13, in Mine\.after_merge\)",
        ),
        (
            "memory = ('mine/drift',)\n\ndef begin(self, context):\n    context.memory.get('mine/drfit')",
            r"The part 'mine' reads 'mine/drfit' in a client's memory .* did you mean 'mine/drift'\?",
        ),
        (
            "memory = ('mine/drift',)\n\ndef finish(self, context):\n    context.memory['mine/drfit'] = torch.zeros(1)",
            r"The part 'mine' keeps 'mine/drfit' in a client's memory .* did you mean 'mine/drift'\? If not, write",
        ),
        (
            "def server_state(self, server):\n    return {'mine/level': State(torch.zeros(1))}\n\n"
            "def after_merge(self, server, clients):\n    server.state['mine/levle']",
            r"The part 'mine' reads 'mine/levle' in server.state without declaring it; did you mean 'mine/level'\?",
        ),
        (
            "def finish(self, context):\n    context.numbers['mine/n'] = 1.0",
            r"The part 'mine' sends 'mine/n' in context.numbers without declaring it; .*Upload\(\(\), 'number'\)",
        ),
        (
            "def uploads(self, size):\n    return {'mine/n': Upload((), 'number')}",
            r"The part 'mine' declares 'mine/n' in 'uploads' and does not send it",
        ),
        (
            "def finish(self, context):\n    context.reply['mine/x'] = torch.zeros(2)\n\n"
            "def uploads(self, size):\n    return {'mine/x': Upload([2], 'sum', when='statistics')}\n\n"
            "def statistics(self, context):\n    return {'mine/x': torch.zeros(2)}\n\n"
            "def server_stage(self, server, sums):\n    pass",
            r"its Upload has when='statistics', which is for the server stage: drop that to send it in rounds",
        ),
        (
            "def finish(self, context):\n    context.reply['mine/x'] = torch.zeros(2)\n\n"
            "def uploads(self, size):\n    return {'mine/x': Upload([2], 'each')}\n\n"
            "def after_merge(self, server, clients):\n    server.total('mine/x')",
            r"'mine/x' is declared as 'each' in 'uploads', which has no sum; take server\.each\('mine/x'\)",
        ),
        (
            "def finish(self, context):\n    context.reply['mine/x'] = torch.zeros(2)\n\n"
            "def uploads(self, size):\n    return {'mine/x': Upload([2], 'sum')}\n\n"
            "def after_merge(self, server, clients):\n    server.each('mine/x')",
            r"'mine/x' is declared as a sum in 'uploads'; take server\.total\('mine/x'\)",
        ),
        (
            "def after_merge(self, server, clients):\n    server.total('mine/n')",
            r"no part declares 'mine/n' as a sum in 'uploads'",
        ),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_not_declared_is_refused_by_name(tmp_path: Path, body: str, said: str, workers: int) -> None:
    with pytest.raises(RunError, match=said):
        run(written(tmp_path, body), tmp_path, workers)


@pytest.mark.slow
def test_sums_and_single_uploads_reach_the_server(tmp_path: Path) -> None:
    body = """
    def finish(self, context):
        for name in ("a", "b", "c"):
            context.reply[f"mine/{name}"] = torch.full((1,), float(context.client + 1))

    def uploads(self, size):
        return {"mine/a": Upload([1], "sum"), "mine/b": Upload([1], "weighted_sum"), "mine/c": Upload([1], "each")}

    def after_merge(self, server, clients):
        samples = [len(server.job.federation.train[client]) for client in range(3)]
        assert float(server.total("mine/a")) == 6
        assert float(server.total("mine/b")) == sum(n * (k + 1) for k, n in enumerate(samples))
        assert sorted(float(tensor) for tensor in server.each("mine/c")) == [1, 2, 3]
        server.figures["mine/checked"] = 1
    """
    result = run(written(tmp_path, body), tmp_path, workers=2)
    assert [line["mine/checked"] for line in result.history] == [1, 1]


@pytest.mark.slow
def test_a_subclass_with_another_loss_is_not_trained_by_the_old_one(tmp_path: Path) -> None:
    """`row_losses` of cross-entropy must not stand in for the loss that a subclass has replaced."""
    (tmp_path / "sub.py").write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from typing import ClassVar

            from fedframe.methods.parts.cross_entropy import CrossEntropy


            @dataclass(frozen=True)
            class Sub(CrossEntropy):
                name: ClassVar[str] = "sub"

                def loss(self, logits, labels, context):
                    if not context.training:
                        1 / 0
                    return super().loss(logits, labels, context)
            """
        )
    )
    with pytest.raises(RunError, match="ZeroDivisionError"):
        fedframe.run(
            f"{tmp_path / 'sub.py'}:Sub",
            out=tmp_path / "run",
            clients=3,
            rounds=1,
            set={"fine_tune": {"what": "head"}},
            progress=False,
        )


# -- what hooks return, and what else would be ignored -----------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def loss(self, logits, labels, context):\n    pass", r"Mine\.loss must return a tensor, and returned None"),
        ("def penalty(self, context):\n    return 0.5", r"Mine\.penalty must return a tensor, and returned a float"),
        ("def step(self, context):\n    context.compute_gradient()", r"Mine\.step must return a tensor"),
        ("def transform(self, model, features, context):\n    pass", r"Mine\.transform must return a tensor"),
        ("def server_step(self, server, updates):\n    pass", r"Mine\.server_step must return a tensor"),
        (
            "def server_step(self, server, updates):\n    return updates.mean()[:3]",
            r"Mine\.server_step gave a step of shape \(3,\)",
        ),
        ("def merger(self, server):\n    pass", r"Mine\.merger must return an object with the methods add"),
        (
            "def server_state(self, server):\n    return {'mine/x': torch.zeros(1)}",
            r"Mine\.server_state must return a dict of State",
        ),
        ("def uploads(self, size):\n    return ('mine/x',)", r"Mine\.uploads must return a dict of Upload"),
        ("def select_clients(self, server, round, clients):\n    return []", r"'mine' selects the clients \[\]"),
        (
            "def select_clients(self, server, round, clients):\n    return [99]",
            r"clients \[99\]; use some of 0 to 2",
        ),
        (
            "def finish(self, context):\n    context.reply['up/x'] = torch.zeros(2)",
            r"The part 'mine' sends 'up/x' without declaring it",
        ),
        (
            "def finish(self, context):\n    context.memory['up/x'] = torch.zeros(2)",
            r"The part 'mine' keeps 'up/x' in a client's memory",
        ),
        ("def begin(self, context):\n    self.x = 1", r"FrozenInstanceError: .*mine\.py, line 13, in Mine\.begin\)"),
        (
            "def begin(self, context):\n    context.scratch['x'] = 1",
            r"scratch takes a key, not 'x': write KEY = Key\[Tensor\]\('x'\)",
        ),
        (
            "def finish(self, context):\n    context.reply['mine/x'] = torch.full((1,), float('nan'))\n\n"
            "def uploads(self, size):\n    return {'mine/x': Upload([1], 'sum')}",
            r"every reply was refused for 'mine/x' of the part 'mine'",
        ),
    ],
)
def test_what_a_hook_returns_is_checked(tmp_path: Path, body: str, said: str, workers: int) -> None:
    with pytest.raises(RunError, match=said):
        run(written(tmp_path, body), tmp_path, workers)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def build_head(self, model):\n    pass", r"Mine\.build_head must set model\.head"),
        ("def private(self, model):\n    return ['head.wieght']", r"names 'head\.wieght'.*did you mean 'head\.weight'"),
        ("def uploads(self, size):\n    return {'mine/x': Upload([1], 'mean')}", r"aggregate = 'mean': "),
        ("def uploads(self, size):\n    return {'mine/x': Upload([1], 'number')}", r"use Upload\(\(\), 'number'\)"),
    ],
)
def test_mistakes_that_show_with_the_model_are_refused(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        run(written(tmp_path, body), tmp_path)


@pytest.mark.slow
def test_a_step_without_the_gradient_does_not_silence_other_parts(tmp_path: Path) -> None:
    body = (
        "def step(self, context):\n    return context.logits.sum() if hasattr(context, 'logits') else torch.zeros(())"
    )
    assert run(written(tmp_path, body), tmp_path / "alone").summary["rounds"] == 2
    with pytest.raises(RunError, match=r"'mine' takes its step without context\.compute_gradient\(\).*'prox'"):
        run(f"fedprox+{tmp_path / 'mine.py'}:Mine", tmp_path)


def test_a_hook_in_a_class_behind_part_is_refused(tmp_path: Path) -> None:
    text = HEAD.replace("class Mine(Part):", "class Mine(Part, Mixin):").replace(
        "@dataclass", "class Mixin:\n    def loss(self, logits, labels, context):\n        1 / 0\n\n\n@dataclass", 1
    )
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(SettingError, match=r"Mixin\.loss comes after Part and would be ignored; put Mixin first"):
        make_method(f"{tmp_path / 'mine.py'}:Mine", {})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def update(self, server, updates):\n    {}.update(a=1)", r"Mine\.update is no hook"),
        ("@property\ndef shares_model(self):\n    return False", r"did you mean 'shares_a_model'"),
        ("sgd_step: ClassVar[bool] = False", r"did you mean 'sgd_steps'"),
        ("memmory: ClassVar[tuple] = ('mine/x',)", r"did you mean 'memory'"),
    ],
)
def test_misspelt_properties_and_attributes_are_refused(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        make_method(written(tmp_path, body), {})


def test_two_classifiers_of_their_own_are_refused(tmp_path: Path) -> None:
    body = "def predict(self, model, features):\n    return model.head(features)"
    with pytest.raises(SettingError, match="both claim the predict slot"):
        make_method(f"auxiliary_heads+{written(tmp_path, body)}", {})


def test_exports_are_one_table() -> None:
    assert fedframe.__all__ == sorted({*fedframe.EXPORTS, "__version__", "measure"})
