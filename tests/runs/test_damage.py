"""A run folder with a damaged file: one sentence that says what can be done, and the same result after doing it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedframe
from fedframe.errors import DamageError, DataError, SettingError
from fedframe.report.page.build import write_page
from fedframe.runs.folder import CONFIG, MODEL, RunFolder
from fedframe.runs.round_files import CHECKPOINT, METRICS, PREVIOUS, SUMMARY
from fedframe.util.files import read_tensors, tensors_to_bytes
from tests.helpers import Recorder, blobs, equal_states

GIVEN: dict[str, Any] = {"model": "mlp:8", "rounds": 4, "epochs": 1, "batch": 8, "workers": 1, "partition": "user"}


class StopAfter(Recorder):
    def __init__(self, round: int) -> None:
        super().__init__()
        self.last = round

    def round(self, record: Any) -> None:
        super().round(record)
        if record.round == self.last:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and the same run stopped after round 3: SCAFFOLD has private states."""
    base = tmp_path_factory.mktemp("sound")
    fedframe.run("scaffold", data=blobs(clients=3), out=base / "finished", progress=False, **GIVEN)
    with pytest.raises(KeyboardInterrupt):
        fedframe.run("scaffold", data=blobs(clients=3), out=base / "stopped", progress=StopAfter(3), **GIVEN)
    return base


@pytest.fixture
def finished(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound / "finished", tmp_path / "finished"))


@pytest.fixture
def stopped(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound / "stopped", tmp_path / "stopped"))


def flip(path: Path, place: float = 0.9) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 4
    path.write_bytes(content)


def resume(folder: Path, **options: Any) -> fedframe.Result:
    return fedframe.resume(folder, data=blobs(clients=3), progress=False, **options)


def same_result(folder: Path, sound: Path) -> bool:
    lines = [RunFolder(path).metrics() for path in (folder, sound / "finished")]
    timeless = [[{k: v for k, v in line.items() if k != "seconds"} for line in each] for each in lines]
    models = [read_tensors(path / MODEL)[0] for path in (folder, sound / "finished")]
    return timeless[0] == timeless[1] and equal_states(*models)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_round_before_gives_the_same_result(stopped: Path, sound: Path) -> None:
    flip(stopped / CHECKPOINT)
    with pytest.raises(DamageError, match=rf"{CHECKPOINT} is damaged.*--from-round 2'"):
        resume(stopped)
    with pytest.raises(SettingError, match="can go back to 0, 2"):
        resume(stopped, from_round=3)
    resume(stopped, from_round=2)
    assert same_result(stopped, sound)


def test_a_missing_checkpoint_is_not_a_fresh_start(stopped: Path) -> None:
    (stopped / CHECKPOINT).unlink()
    with pytest.raises(DamageError, match=r"There is no .*--from-round 2'"):
        resume(stopped)


@pytest.mark.slow
def test_with_both_checkpoints_damaged_the_run_starts_again(stopped: Path, sound: Path) -> None:
    flip(stopped / CHECKPOINT)
    flip(stopped / PREVIOUS)
    with pytest.raises(DamageError, match=r"train again from the start: .*--from-round 0'"):
        resume(stopped)
    resume(stopped, from_round=0)
    assert same_result(stopped, sound)


@pytest.mark.slow
def test_a_damaged_model_of_a_finished_run_is_made_again_to_the_same_bits(finished: Path, sound: Path) -> None:
    before = (finished / MODEL).read_bytes()
    flip(finished / MODEL)
    with pytest.raises(DamageError, match=rf"{MODEL} is damaged.*--from-round 4'"):
        fedframe.Predictor.load(finished)
    resume(finished, from_round=4)
    assert (finished / MODEL).read_bytes() == before
    assert same_result(finished, sound)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [Path.unlink, flip])
def test_a_private_state_that_is_gone_or_damaged_is_an_error(stopped: Path, damage: Callable[[Path], None]) -> None:
    damage(stopped / "clients" / "000" / "000001" / "000003.safetensors")
    with pytest.raises(DamageError, match=r"(missing|damaged).*--without-private-state"):
        resume(stopped)
    result = resume(stopped, without_private_state=True)
    assert "The private state of 1 of 3 clients is lost" in (stopped / "log.txt").read_text()
    assert result.summary["rounds"] == 4


@pytest.mark.slow
def test_nothing_is_forgotten_of_clients_whose_state_is_sound(stopped: Path, sound: Path) -> None:
    resume(stopped, without_private_state=True)
    assert same_result(stopped, sound)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["flip", "cut", "empty", "gone", "bytes"])
def test_damaged_lines_of_metrics_are_put_back_from_the_checkpoint(stopped: Path, sound: Path, way: str) -> None:
    path = stopped / METRICS
    content = path.read_bytes()
    if way == "gone":
        path.unlink()
    else:
        middle = len(content) // 2
        damaged = {"cut": content[:middle], "empty": b"", "bytes": content[:middle] + b"\xff\xfe" + content[middle:]}
        path.write_bytes(damaged.get(way, content))
        if way == "flip":
            flip(path, 0.5)
    said: list[str] = []
    write_page([stopped], quick=True, notify=said.append)
    assert any("put back from the checkpoint" in text for text in said)
    assert path.read_bytes() == content
    resume(stopped)
    assert same_result(stopped, sound)


@pytest.mark.slow
def test_a_line_that_was_cut_off_by_a_kill_is_no_damage(stopped: Path, sound: Path) -> None:
    with (stopped / METRICS).open("a") as file:
        file.write('{"round": 4, "lo')
    assert RunFolder(stopped).damaged_lines() is None
    assert len(RunFolder(stopped).metrics()) == 3
    resume(stopped)
    assert same_result(stopped, sound)


@pytest.mark.slow
def test_a_line_of_a_round_without_a_checkpoint_is_no_damage(stopped: Path, sound: Path) -> None:
    RunFolder(stopped).append_metrics({"round": 4, "loss": 1.0})
    resume(stopped)
    assert same_result(stopped, sound)


def test_settings_that_were_damaged_or_edited_say_so_and_can_be_used_all_the_same(stopped: Path) -> None:
    text = (stopped / CONFIG).read_text()
    (stopped / CONFIG).write_text(text.replace("rounds: 4", "rounds: 5"))
    with pytest.raises(DataError, match=r"damaged or was edited.*checksum"):
        resume(stopped)
    lines = (stopped / CONFIG).read_text().splitlines()
    (stopped / CONFIG).write_text("\n".join(line for line in lines if not line.startswith("# checksum")))
    assert RunFolder(stopped).settings().rounds == 5


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9])
def test_settings_that_were_cut_short_are_never_filled_up_with_defaults(stopped: Path, share: float) -> None:
    content = (stopped / CONFIG).read_bytes()
    (stopped / CONFIG).write_bytes(content[: int(share * len(content))])
    with pytest.raises(DamageError):
        RunFolder(stopped).settings()


@pytest.mark.slow
def test_every_flipped_bit_of_the_settings_is_found_or_changes_nothing(stopped: Path) -> None:
    content, settings = (stopped / CONFIG).read_bytes(), RunFolder(stopped).settings()
    for bit in range(0, 8 * min(len(content), 600), 3):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << (bit % 8)
        (stopped / CONFIG).write_bytes(changed)
        try:
            assert RunFolder(stopped).settings() == settings
        except DamageError:
            continue


def test_the_summary_says_how_many_lines_there_are(finished: Path) -> None:
    (finished / METRICS).write_bytes(b"")
    with pytest.raises(DamageError, match=METRICS):
        fedframe.resume(finished, data=blobs(clients=3)).history  # noqa: B018


@pytest.mark.slow
def test_a_folder_of_an_earlier_version_is_read_and_resumed(stopped: Path, sound: Path) -> None:
    for path in stopped.rglob("*.safetensors"):
        tensors, notes = read_tensors(path)
        plain = {name: tensor for name, tensor in tensors.items() if not name.startswith(("lines/", "private/"))}
        path.write_bytes(tensors_to_bytes(plain, notes))
    (stopped / PREVIOUS).unlink()
    text = (stopped / CONFIG).read_text().splitlines()
    (stopped / CONFIG).write_text("\n".join(line for line in text if "checksum" not in line) + "\n")
    lines = [json.loads(line) for line in (stopped / METRICS).read_text().splitlines()]
    (stopped / METRICS).write_text(
        "".join(json.dumps({k: v for k, v in line.items() if k != "crc"}) + "\n" for line in lines)
    )
    resume(stopped)
    assert same_result(stopped, sound)


@pytest.mark.slow
def test_a_crash_before_the_settings_were_written_does_not_block_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "inputs.json").write_text("{}")
    (folder / ".config.yaml.123.part").write_text("meth")
    result = fedframe.run("fedavg", data=blobs(), out=folder, progress=False, **{**GIVEN, "rounds": 1})
    assert result.summary["rounds"] == 1
    with pytest.raises(SettingError, match="already holds a run"):
        fedframe.run("fedavg", data=blobs(), out=folder, progress=False, **GIVEN)


def test_other_files_still_block_a_name(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SettingError, match="holds other files"):
        fedframe.run("fedavg", data=blobs(), out=tmp_path, progress=False, **GIVEN)


def test_missing_personal_models_are_noticed_by_a_report(finished: Path) -> None:
    next((finished / "personal").rglob("*.safetensors")).unlink()
    with pytest.raises(DamageError, match="holds 2 of the 3 models"):
        fedframe.measure.examine(finished, data=blobs(clients=3))


@pytest.mark.slow
def test_a_damaged_summary_can_be_made_again(finished: Path, sound: Path) -> None:
    flip(finished / SUMMARY, 0.5)
    with pytest.raises(DamageError, match="--from-round 4'"):
        fedframe.resume(finished, data=blobs(clients=3)).scores  # noqa: B018
    resume(finished, from_round=4)
    scores = [json.loads((path / SUMMARY).read_text())["scores"] for path in (finished, sound / "finished")]
    assert scores[0] == scores[1]
    assert torch.equal(*(read_tensors(path / CHECKPOINT)[0]["model"] for path in (finished, sound / "finished")))
