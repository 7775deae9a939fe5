"""Ways in which a hook could be written and yet have no effect: each ends before or in the first round, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedframe.errors import RunError, SettingError
from tests.core.test_part_check import HEAD, run, written

OWN_STEP = """
def step(self, context):
    for weights in context.named.values():
        weights.grad = weights.detach() * 0.01
    context.apply_gradient()
    return context.model.head.weight.sum() * 0
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def loss(self, logits, labels, context):\n    1 / 0", "'loss' of 'mine' has no effect"),
        ("def penalty(self, context):\n    1 / 0", "'penalty' of 'mine' has no effect"),
        ("def correct(self, context):\n    1 / 0", "'correct' of 'mine' has no effect"),
        ("def transform(self, model, features, context):\n    1 / 0", "'transform' of 'mine' has no effect"),
    ],
)
def test_step_without_the_gradient_silences_no_hook_of_its_own_part(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(RunError, match=said):
        run(written(tmp_path, OWN_STEP + body), tmp_path)


@pytest.mark.parametrize("other", ["balanced_ce", "normalise", "spherefed"])
def test_step_without_the_gradient_silences_no_loss_or_transform_of_others(tmp_path: Path, other: str) -> None:
    with pytest.raises(RunError, match=r"without context.compute_gradient\(\), so that '\w+' of '\w+' has no effect"):
        run(f"{other}+{written(tmp_path, OWN_STEP)}", tmp_path)


@pytest.mark.slow
def test_step_without_the_gradient_is_fine_where_nobody_else_has_a_word(tmp_path: Path) -> None:
    run(written(tmp_path, OWN_STEP), tmp_path)


def test_part_without_a_hook_is_refused_and_a_function_beside_it_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + "\n\ndef penalty(self, context):\n    return 1 / 0\n")
    with pytest.raises(
        SettingError, match="overrides no hook, so that it would do nothing; indent the function 'penal"
    ):
        run(f"{tmp_path / 'mine.py'}:Mine", tmp_path)
    with pytest.raises(SettingError, match="overrides no hook, so that it would do nothing; docs/own"):
        run(written(tmp_path, "mu: float = 0.1"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "hook"),
    [
        ("def correct(self, context):\n    return [w.grad * 0 for w in context.named.values()]", "correct"),
        ("def begin(self, context):\n    return context", "begin"),
        ("def begin_epoch(self, context, epoch):\n    return 1", "begin_epoch"),
        ("def finish(self, context):\n    return {}", "finish"),
        ("def after_merge(self, server, clients):\n    return server.model", "after_merge"),
        ("def after_rounds(self, server):\n    return server.model", "after_rounds"),
        ("def build(self, model):\n    return model", "build"),
        ("def personalise(self, context):\n    return context.model", "personalise"),
        ("def check_settings(self, settings):\n    return True", "check_settings"),
        ("def check_method(self, method):\n    return True", "check_method"),
    ],
)
def test_what_a_hook_that_works_in_place_returns_is_refused(tmp_path: Path, body: str, hook: str) -> None:
    with pytest.raises(RunError, match=rf"Mine\.{hook} returned a \w+, which nobody would use"):
        run(written(tmp_path, body), tmp_path)


@pytest.mark.parametrize(
    "body", ["def finish(self, context):\n    yield 1 / 0", "async def correct(self, context):\n    1 / 0"]
)
def test_hook_whose_body_would_not_run_is_refused(tmp_path: Path, body: str) -> None:
    with pytest.raises(SettingError, match="has a yield or an async"):
        run(written(tmp_path, body), tmp_path)


def test_penalty_without_a_gradient_is_refused(tmp_path: Path) -> None:
    body = (
        "def penalty(self, context):\n    with torch.no_grad():\n        return 100 * context.model.head.weight.norm()"
    )
    with pytest.raises(RunError, match="penalty of the part 'mine' has no gradient"):
        run(written(tmp_path, body), tmp_path)


@pytest.mark.slow
def test_penalty_of_nothing_needs_no_gradient(tmp_path: Path) -> None:
    run(written(tmp_path, "def penalty(self, context):\n    return torch.zeros(())"), tmp_path)


@pytest.mark.slow
def test_penalty_on_weights_that_rest_for_an_epoch_is_no_mistake(tmp_path: Path) -> None:
    body = "def penalty(self, context):\n    return context.named['backbone.layers.0.weight'].square().sum()"
    found = run(f"fedrep+{written(tmp_path, body)}", tmp_path)  # the classifier's epochs leave the backbone alone
    assert found.folder.is_dir()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def loss(self, labels, logits, context):\n    1 / 0", "has its parameters in another order"),
        ("@property\ndef generic_score(self):\n    return 1", "generic_score is no hook of a part"),
    ],
)
def test_signatures_and_properties_that_would_mislead_are_refused(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        run(written(tmp_path, body), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "def select_clients(self, server, round, clients):\n    pass",
            "must return a list of clients, and returned None",
        ),
        ("def select_clients(self, server, round, clients):\n    return [0, 0]", r"selects the clients \[0, 0\]"),
        ("def predict(self, model, features):\n    pass", "predict must return a tensor"),
        ("def head_stages(self, method, model):\n    return [1]", "must return a list of HeadStage"),
        (
            "def merger(self, server):\n    class M:\n        def add(self, reply): ...\n"
            "        def finish(self): ...\n    return M()",
            r"M.add must take \(self, reply, weight\)",
        ),
    ],
)
def test_what_hooks_of_the_server_return_is_checked(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(RunError, match=said):
        run(written(tmp_path, body), tmp_path)


@pytest.mark.slow
def test_selected_clients_may_be_an_array(tmp_path: Path) -> None:
    body = "def select_clients(self, server, round, clients):\n    import numpy\n    return numpy.array(clients[:2])"
    run(written(tmp_path, body), tmp_path)
