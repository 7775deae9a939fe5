"""Corrupts every file of run folders in every way, uses the folders, and counts what comes of it.

    python -m benchmarks.corruption                    # about ten minutes of one core
    python -m benchmarks.corruption --every 7          # a seventh of the cases
    python -m benchmarks.corruption --random 400       # a bit or a length at random, in one process

tests/runs/test_every_file.py has every kind of file in eight ways.

Three subjects: a finished run with private states, personal models and drift; the same run stopped in the middle; and
a comparison. One file is damaged in a copy, and every command that reads such folders is called on it in a forked
process. What comes of it is `same` (the result is that of the sound folder), `sentence` (an error of ours, in one
line), `said` (a result with a note on what is damaged), `traceback`, `hang`, or `changed`: another result and not a
word, which is the worst of them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a forked process would wait for threads it has not
SECONDS = 15  # after which a command is held to hang: fifty times what the slowest takes
NOT_RESULTS = ("seconds", "cpu_seconds", "peak_memory_mb", "seconds_in_rounds", "stages", "checksum")
NOT_READ = ("log.txt", ".lock", "report.html")  # nothing is taken from these
OPTIONAL = ("gain.json", "examination.json")  # a run without them is a run that was not asked for them
DEEP = b"[" * 100_000


# -- the subjects ------------------------------------------------------------------------------------------------------
def make_data(folder: Path) -> Path:
    """Three clients with two classes each, in a file."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 72)
    x = (draw.normal(0, 3, (3, 5))[y] + draw.normal(0, 1, (72, 5))).astype(np.float32)
    path = folder / "data.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:30], y_test=y[:30], user_train=np.repeat([0, 1, 2], 24))
    return path


def make_subjects(folder: Path) -> dict[str, Path]:
    """The sound folders."""
    made = make_runs(folder)
    with quietly():
        run_compare(folder / "comparison")
    return {**made, "comparison": folder / "comparison"}


def make_runs(folder: Path) -> dict[str, Path]:
    """A finished run and one that was stopped."""
    import fedframe
    from fedframe.experiments.gain import gain
    from fedframe.report.page.build import write_page
    from fedframe.runs.progress import Display

    data = make_data(folder)
    common: dict[str, Any] = {"model": "mlp:8", "rounds": 4, "epochs": 2, "batch": 8, "workers": 1, "measure": "drift"}

    class StopAfterTwo(Display):
        def round(self, record: Any) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    with quietly():
        fedframe.run("scaffold", data=f"npz:{data}", out=folder / "finished", progress=False, **common)
        write_page([folder / "finished"], notify=lambda text: None)
        gain(folder / "finished", progress=False)
        with contextlib.suppress(KeyboardInterrupt):
            fedframe.run("scaffold", data=f"npz:{data}", out=folder / "stopped", progress=StopAfterTwo(), **common)
    return {name: folder / name for name in ("finished", "stopped")}


def run_compare(folder: Path) -> None:
    """A small comparison, begun or gone on with."""
    import fedframe

    given: dict[str, Any] = {"model": "mlp:8", "rounds": 2, "epochs": 2, "batch": 8}
    data = f"npz:{data_of(folder)}"
    fedframe.compare(["fedavg", "scaffold"], data=data, seeds=1, out=folder, cores=1, progress=False, **given)


def data_of(folder: Path) -> Path:
    """The data of the subjects: beside the sound ones."""
    return next(parent / "data.npz" for parent in folder.absolute().parents if (parent / "data.npz").exists())


# -- what is done with a folder, and what it gives ---------------------------------------------------------------------
def resumed(folder: Path, said: list[str]) -> Any:
    import fedframe
    from fedframe.runs.progress import Display

    class Listener(Display):
        def note(self, text: str) -> None:
            said.append(text)

    result = fedframe.resume(folder, progress=Listener())
    said[:] = [text for text in said if not text.startswith("Going on after round")]
    weights = [tensor.flatten().tolist() for _, tensor in sorted(result.model.model.state_dict().items())]
    return [plain(result.summary), [plain(line) for line in result.history], weights]


def predicted(folder: Path, said: list[str], client: str | None = None) -> Any:
    from fedframe.runs.predictor import predict_file

    return list(predict_file(folder, data_of(folder).parent / "inputs.npy", client, 3))


def predicted_by_client(folder: Path, said: list[str]) -> Any:
    return predicted(folder, said, "1")


def personalised(folder: Path, said: list[str]) -> Any:
    import fedframe

    found = fedframe.personalise(folder, f"npz:{data_of(folder)}", name="late", overwrite=True, progress=False)
    return [found.scores, digest(folder / "personal" / "joined" / "late.safetensors")]


def gained(folder: Path, said: list[str]) -> Any:
    from fedframe.experiments.gain import gain

    return plain(gain(folder, progress=False))


def reported(folder: Path, said: list[str]) -> Any:
    from fedframe.report.page.build import write_page

    page = write_page([folder], notify=said.append)
    said[:] = [text for text in said if not text.startswith("Looking at")]
    return page.read_text().replace(str(folder), "FOLDER")


def compared(folder: Path, said: list[str]) -> Any:
    run_compare(folder)
    content = plain(json.loads((folder / "comparison.json").read_text()))
    for method in content["methods"]:
        del method["runs"]  # a run that is made again may have another folder
    return {key: value for key, value in content.items() if key != "command"}


Use = Callable[[Path, list[str]], Any]
USES: dict[str, dict[str, Use]] = {
    "finished": {
        "resume": resumed,
        "predict": predicted,
        "predict --client": predicted_by_client,
        "personalise": personalised,
        "gain": gained,
        "report": reported,
    },
    "stopped": {"report": reported, "resume": resumed},
    "comparison": {"compare": compared, "report": reported},
}


def plain(value: Any) -> Any:
    """A result without its times."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in NOT_RESULTS}
    return [plain(each) for each in value] if isinstance(value, list) else value


def digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes()).hexdigest()


# -- the corruptions ---------------------------------------------------------------------------------------------------
def flip(place: float) -> Callable[[Path], None]:
    def corrupt(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[min(int(place * len(content)), len(content) - 1)] ^= 1 << 2
        path.write_bytes(content)

    return corrupt


def replace_by(content: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(content), None)[1]


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def bad_text(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + b"\xff\xfe\xc3\x28" + content[len(content) // 2 :])


def npy_header() -> bytes:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000), }"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


WAYS: dict[str, Callable[[Path], None]] = {
    **{f"flip at {place:.0%}": flip(place) for place in (0.02, 0.3, 0.6, 0.9, 1.0)},
    "truncate": cut,
    "empty": replace_by(b""),
    "delete": Path.unlink,
    "folder": to_folder,
    "fifo": to_fifo,
    "bad UTF-8": bad_text,
    "deep JSON": replace_by(DEEP),
    "huge npy": replace_by(npy_header()),
}


@dataclass(frozen=True)
class Outcome:
    """What one command made of one corruption."""

    subject: str
    file: str
    way: str
    use: str
    kind: str
    text: str = ""


def attempt(subject: str, use: str, folder: Path, sound: Any) -> tuple[str, str]:
    """What a command gives in this process."""
    from fedframe.errors import FedframeError

    said: list[str] = []
    try:
        with quietly():
            value = json.loads(json.dumps(USES[subject][use](folder, said)))
    except FedframeError as error:
        text = str(error)
        return ("sentence" if text and "\n" not in text and "Traceback" not in text else "traceback"), text
    except BaseException as error:
        return "traceback", f"{type(error).__name__}: {error}"[:300]
    if said:
        return "said", said[0]
    if sound is None:
        return "sound", json.dumps(value)
    return ("same", "") if json.dumps(value) == sound else ("changed", "")


def in_child(subject: str, folder: Path, sound: dict[str, str] | None) -> dict[str, tuple[str, str]]:
    """All uses of a subject, each in a copy of the folder and a process that can be ended."""
    found = {}
    for use in USES[subject]:
        copy = folder.with_name(f"{folder.name}-copy")
        shutil.copytree(folder, copy, copy_function=copy_special)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            signal.alarm(SECONDS)
            result = attempt(subject, use, copy, None if sound is None else sound[use])
            with os.fdopen(writer, "w") as pipe:
                json.dump(result, pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        found[use] = tuple(json.loads(text)) if text else ("hang", f"status {status}")
        shutil.rmtree(copy)
    return found


def copy_special(source: str, target: str) -> None:
    """Copy a file; of a FIFO there is nothing to copy."""
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copyfile(source, target)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def copytree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=copy_special)


def corruptions(subjects: dict[str, Path], every: int, only: str) -> Iterator[tuple[str, str, str]]:
    """Subject, file and way of every case."""
    number = 0
    for subject, folder in subjects.items():
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        for file in files:
            if Path(file).name in NOT_READ or file.endswith((".html", ".md", ".tex", ".csv")):
                continue
            for way in WAYS:
                number += 1
                if way == "delete" and Path(file).name in OPTIONAL:
                    continue
                if number % every == 0 and only in f"{subject} {file} {way}":
                    yield subject, file, way


def run_all(every: int = 1, only: str = "", notify: Callable[[str], None] = print) -> list[Outcome]:
    """Every case; outcomes that are not good are shown as they come."""
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        subjects = make_subjects(base)
        np.save(base / "inputs.npy", np.load(base / "data.npz")["x_test"][:4])
        work = base / "work" / "run"
        work.parent.mkdir()
        sound: dict[str, dict[str, str]] = {}
        for subject, folder in subjects.items():
            copytree(folder, work)
            results = in_child(subject, work, None)
            bad = {use: text for use, (kind, text) in results.items() if kind != "sound"}
            if subject != "stopped" and bad:
                raise SystemExit(f"A sound {subject} folder gives {bad}.")
            sound[subject] = {use: text for use, (_, text) in results.items()}
            shutil.rmtree(work)
        for subject, file, way in corruptions(subjects, every, only):
            copytree(subjects[subject], work)
            WAYS[way](work / file)
            for use, (kind, text) in in_child(subject, work, sound[subject]).items():
                found.append(Outcome(subject, file, way, use, kind, text))
                if kind in ("traceback", "hang", "changed"):
                    notify(f"{kind:9} {subject} {file} ({way}), {use}: {text[:160]}")
            shutil.rmtree(work)
    return found


def run_random(count: int, seed: int = 0, notify: Callable[[str], None] = print) -> list[Outcome]:
    """So many damages of the finished run, each a flipped bit or (a quarter) a cut at a random place."""
    draw, found = np.random.default_rng(seed), list[Outcome]()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        sound_folder, work = make_runs(base)["finished"], base / "work" / "run"
        np.save(base / "inputs.npy", np.load(base / "data.npz")["x_test"][:4])
        work.parent.mkdir()
        files = sorted(path.relative_to(sound_folder).as_posix() for path in sound_folder.rglob("*") if path.is_file())
        files = [file for file in files if Path(file).name not in NOT_READ and not file.endswith(".html")]
        sound = dict[str, str]()
        for number in range(-1, count):
            file, size = str(draw.choice(files)), 0
            place, bit, cuts = float(draw.random()), int(draw.integers(8)), float(draw.random()) < 0.25
            for use in ("resume", "predict", "predict --client", "report"):
                copytree(sound_folder, work)
                if number >= 0:
                    content = bytearray((work / file).read_bytes())
                    size = int(place * len(content))
                    if cuts:
                        del content[size:]
                    else:
                        content[size] ^= 1 << bit
                    (work / file).write_bytes(content)
                kind, text = attempt("finished", use, work, sound.get(use))
                shutil.rmtree(work)
                if number < 0:
                    sound[use] = text
                    continue
                way = f"cut at {size}" if cuts else f"bit {bit} of byte {size}"
                found.append(Outcome("finished", file, way, use, kind, text))
                if kind in ("traceback", "changed"):
                    notify(f"{kind:9} {file} ({way}), {use}: {text[:160]}")
    return found


WORST = ("hang", "changed", "traceback", "said", "sentence", "same")


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="take every nth case only")
    parser.add_argument("--only", default="", help="cases whose subject, file or way has this text")
    parser.add_argument("--random", type=int, help="so many random damages of a finished run instead")
    parser.add_argument("--out", type=Path, help="a file for all outcomes as JSON lines")
    given = parser.parse_args()
    began = time.process_time()

    def notify(text: str) -> None:
        print(text, flush=True)

    found = run_random(given.random, notify=notify) if given.random else run_all(given.every, given.only, notify)
    cases: dict[tuple[str, str, str], list[str]] = {}
    for each in found:
        cases.setdefault((each.subject, each.file, each.way), []).append(each.kind)
    worst = Counter(min(kinds, key=WORST.index) for kinds in cases.values())
    print(f"{len(cases)} corruptions, {len(found)} commands ({time.process_time() - began:.0f} s here)")
    print("corruptions by their worst command:", {kind: worst.get(kind, 0) for kind in WORST})
    uses = Counter(each.kind for each in found)
    print("commands:", {kind: uses.get(kind, 0) for kind in WORST})
    if given.out is not None:
        given.out.write_text("".join(json.dumps(vars(each)) + "\n" for each in found))


if __name__ == "__main__":
    main()
