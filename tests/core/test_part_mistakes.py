"""What an author of a part can get wrong with values: shapes, types, names that two parts share, NaN."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedframe
from fedframe.errors import FedframeError, RunError, SettingError
from fedframe.methods.recipes import make_method
from tests.core.test_part_check import HEAD, run, written

HOOK = "\n\ndef begin(self, context): ..."  # a part without any is refused before the rest is looked at
KEPT = "def server_state(self, server):\n    return {'mine/x': State(torch.zeros(10, 4), broadcast=True)}\n\n"


def two_parts(folder: Path, first: str, second: str) -> str:
    """A method of two parts of one's own, `mine` and `yours`."""
    (folder / "yours.py").write_text(
        HEAD.replace("Mine", "Yours").replace('"mine"', '"yours"') + textwrap.indent(textwrap.dedent(second), "    ")
    )
    return f"{written(folder, first)}+{folder / 'yours.py'}:Yours"


# -- names -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("first", "second"), [("('visits',)", "('visits',)"), ("('a/*',)", "('a/b',)"), ("('a/b',)", "('a/*',)")]
)
def test_two_parts_cannot_share_a_name_in_memory(tmp_path: Path, first: str, second: str) -> None:
    with pytest.raises(SettingError, match=r"'yours' keeps '.*' in a client's memory, and so does 'mine'; rename it"):
        run(two_parts(tmp_path, f"memory = {first}{HOOK}", f"memory = {second}{HOOK}"), tmp_path)


@pytest.mark.parametrize(
    "body",
    [
        f"memory = ('x',){HOOK}",
        "def uploads(self, size):\n    return {'x': Upload([1], 'sum')}",
        "def server_state(self, server):\n    return {'x': State(torch.zeros(1))}",
    ],
)
def test_names_start_with_that_of_the_part(tmp_path: Path, body: str) -> None:
    with pytest.raises(SettingError, match=r"mine\.py: Mine .* 'x'; names start with the part's own: write 'mine/x'"):
        run(written(tmp_path, body), tmp_path)


@pytest.mark.slow
def test_a_part_that_derives_from_another_keeps_its_names(tmp_path: Path) -> None:
    (tmp_path / "sub.py").write_text(
        HEAD.replace("class Mine(Part)", "class Mine(Scaffold)").replace(
            "import torch", "import torch\nfrom fedframe.methods.parts.scaffold import Scaffold"
        )
    )
    assert run(f"{tmp_path / 'sub.py'}:Mine", tmp_path).summary["rounds"] == 2


def test_a_memory_that_is_one_string_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"Mine\.memory is a string, not a tuple; write memory = \('mine/list',\)"):
        make_method(written(tmp_path, "memory = ('mine/list')"), {})


def test_the_advice_on_memory_keeps_what_is_declared(tmp_path: Path) -> None:
    body = "memory = ('mine/a',)\n\ndef finish(self, context):\n    context.memory['mine/other'] = torch.zeros(1)"
    with pytest.raises(RunError, match=re.escape("= ('mine/a', 'mine/other').")):
        run(written(tmp_path, body), tmp_path)


@pytest.mark.parametrize("line", ["strength = 0.1", "strength = 3", "strength = True", "strength = 'much'"])
def test_an_attribute_without_a_type_is_refused(tmp_path: Path, line: str) -> None:
    value = line.partition(" = ")[2]
    kind = type(eval(value)).__name__
    with pytest.raises(SettingError, match=rf"Mine\.strength .*write strength: {kind} = {value}, or"):
        make_method(written(tmp_path, line), {})


@pytest.mark.parametrize(
    "line", ["strength: ClassVar[float] = 0.1", "_strength = 0.1", "strength: float = 0.1", "rank = 3"]
)
def test_typed_private_and_known_attributes_are_not_refused(tmp_path: Path, line: str) -> None:
    make_method(written(tmp_path, line + HOOK), {})


# -- the server's state ------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_state_of_another_shape_is_refused_where_it_is_set_and_not_kept(tmp_path: Path) -> None:
    body = KEPT + "def after_merge(self, server, clients):\n    server.state['mine/x'] = torch.zeros(3, 4)"
    method = written(tmp_path, body)
    with pytest.raises(RunError) as caught:
        run(method, tmp_path)
    assert re.fullmatch(
        r"Round 1, server: ValueError: The part 'mine' keeps 'mine/x' in server\.state with shape \(3, 4\), and its "
        r"'server_state' declares \(10, 4\) \(.*mine\.py, line \d+, in Mine\.after_merge\)",
        str(caught.value),
    )
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    written(tmp_path, body.replace("(3, 4)", "(10, 4)"))
    assert fedframe.resume(tmp_path / "run", changed_code=True, progress=False).summary["rounds"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("server.state['mine/x'] = torch.zeros(10, 4) / 0", r"NaN or infinite values \(.*in Mine\.after_merge\)"),
        ("server.state['mine/x'][0] = float('nan')", r"Round 2: the part 'mine' keeps 'mine/x' .* NaN or infinite"),
        ("server.state['mine/x'] = 3.0", r"'mine/x' in server\.state, which must be a tensor and is of type float"),
    ],
)
def test_what_no_round_could_use_is_not_checkpointed(tmp_path: Path, line: str, said: str) -> None:
    body = KEPT + f"def after_merge(self, server, clients):\n    if server.current_round == 2:\n        {line}"
    with pytest.raises(RunError, match=said):
        run(written(tmp_path, body), tmp_path)
    kept = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert torch.equal(kept["state/mine/x"], torch.zeros(10, 4))


@pytest.mark.slow
def test_a_resumed_run_takes_the_shape_that_is_declared_now(tmp_path: Path) -> None:
    body = KEPT + "def after_merge(self, server, clients):\n    if server.current_round == 2:\n        1 / 0"
    with pytest.raises(RunError, match="ZeroDivisionError"):
        run(written(tmp_path, body), tmp_path)
    written(tmp_path, KEPT.replace("10, 4", "5"))
    fedframe.resume(tmp_path / "run", changed_code=True, progress=False)
    assert load_file(tmp_path / "run" / "checkpoint.safetensors")["state/mine/x"].shape == (5,)
    assert "state on the server has changed (mine/x)" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.slow
def test_the_server_knows_the_size_of_the_model(tmp_path: Path) -> None:
    body = """
    def server_state(self, server):
        return {'mine/x': State(torch.zeros(server.size.classes, server.size.dim))}
    """
    run(written(tmp_path, body), tmp_path)
    kept = load_file(tmp_path / "run" / "checkpoint.safetensors")["state/mine/x"]
    assert (10, kept.shape[1]) in [tensor.shape for tensor in load_file(tmp_path / "run/model.safetensors").values()]


# -- values that hooks give --------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "def penalty(self, context):\n    return context.embedding.square()",
            r"mine\.py: Mine\.penalty must return a single number \(a tensor of shape \(\)\), and returned shape "
            r"\(\d+, \d+\): is a \.mean\(\) missing\?",
        ),
        (
            "def loss(self, logits, labels, context):\n    return (logits ** 2).mean(1)",
            r"Mine\.loss must return a single number .* shape \(\d+,\)",
        ),
        (
            KEPT.replace(", broadcast=True", "") + "def begin(self, context):\n    context.received['mine/x']",
            r"'mine' reads 'mine/x' in context\.received, and the server keeps it without sending it; write 'mine/x': "
            r"State\(\.\.\., broadcast=True\) in 'server_state' \(.*mine\.py, line \d+, in Mine\.begin\)",
        ),
        (
            KEPT + "def begin(self, context):\n    context.received['mine/y']",
            r"'mine/y' in context\.received, which was not sent; did you mean 'mine/x'\?",
        ),
        (
            "memory = ('mine/x',)\n\ndef finish(self, context):\n    context.memory['mine/x'] = [1, 2]",
            r"'mine' keeps 'mine/x' in a client's memory, which must be a tensor and is of type list; write "
            r"torch\.as_tensor\(\.\.\.\) \(.*mine\.py, line \d+, in Mine\.finish\)",
        ),
        (
            "def uploads(self, size):\n    return {'mine/x': Upload([1], 'sum')}\n\n"
            "def finish(self, context):\n    context.reply['mine/x'] = 1.0",
            r"'mine' sends 'mine/x', which must be a tensor and is of type float; .*in Mine\.finish\)",
        ),
        (
            "def uploads(self, size):\n    return {'mine/x': Upload((), 'number')}\n\n"
            "def finish(self, context):\n    context.numbers['mine/x'] = torch.zeros(())",
            r"'mine' sends 'mine/x' in context\.numbers, which must be a plain int or float and is of type Tensor",
        ),
        (
            "def penalty(self, context):\n    return context.embedding.mean() * float('nan')",
            r"not one update could be used: .*mine\.py: Mine\.penalty returns NaN or infinite values, in a client",
        ),
        (
            "def loss(self, logits, labels, context):\n    return (logits - 1e9).log().mean()",
            r"Mine\.loss returns NaN or infinite values",
        ),
        (
            "def penalty(self, context):\n    return (0 * context.embedding).norm(dim=1).sqrt().mean()",
            r"the gradient of .*Mine\.penalty is NaN or infinite",
        ),
        (
            "def transform(self, model, features, context):\n    return features / 0",
            r"Mine\.transform returns NaN or infinite values",
        ),
        (
            "def correct(self, context):\n    context.named['head.weight'].grad.mul_(float('inf'))",
            r"Mine\.correct makes gradients NaN or infinite",
        ),
    ],
)
def test_a_value_that_cannot_work_is_one_sentence_with_its_hook(
    tmp_path: Path, body: str, said: str, workers: int
) -> None:
    with pytest.raises(RunError, match=said) as caught:
        run(written(tmp_path, body), tmp_path, workers)
    assert "smaller lr" not in str(caught.value)
    assert "--changed-code" in "".join(caught.value.__notes__)


@pytest.mark.slow
def test_training_that_diverges_is_still_a_matter_of_the_learning_rate(tmp_path: Path) -> None:
    with pytest.raises(FedframeError, match="smaller lr"):
        fedframe.run("fedavg", out=tmp_path / "run", clients=3, rounds=3, lr=1e12, workers=1, progress=False)


@pytest.mark.slow
def test_a_failure_before_the_first_round_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="names start with"):
        run(written(tmp_path, f"memory = ('x',){HOOK}"), tmp_path)
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match="ZeroDivisionError"):
        run(written(tmp_path, "def server_state(self, server):\n    1 / 0"), tmp_path)
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match="ZeroDivisionError") as caught:
        run(written(tmp_path, "def begin(self, context):\n    1 / 0"), tmp_path)
    assert f"fedframe resume {tmp_path / 'run'} --changed-code" in "".join(caught.value.__notes__)
