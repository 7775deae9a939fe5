"""What a node knows of itself when a run is over: its own scores, confusion, rounds, and what it gains by joining.

All of it stays in the node's folder, where `fedframe report` and `fedframe gain` read it. Only with `--tell-gain` does
the gain leave, as numbers of the last reply (`core/node_gain.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.evaluation import ByClient, Scores, recognised, with_client, with_personal
from fedframe.core.job import Job
from fedframe.core.message import Message, Number
from fedframe.core.model import load_tensors
from fedframe.core.node_gain import gain_numbers
from fedframe.core.stage_costs import StageCosts
from fedframe.core.target_measures import Single
from fedframe.jobs.build import JobMaker
from fedframe.runs.alone import NOT_ALONE, alone_settings
from fedframe.runs.folder import CLIENT_SCORES, RunFolder
from fedframe.runs.gain import ALONE, compare_client, with_pairs, write_gain
from fedframe.runs.progress import choose_display
from fedframe.runs.round_files import SUMMARY
from fedframe.runs.session import execute
from fedframe.runs.summary import client_table, spreads, summarise
from fedframe.settings import Settings
from fedframe.util.files import read_json, read_tensors, write_json

if TYPE_CHECKING:
    from fedframe.federation.join import Membership


# -- rounds ------------------------------------------------------------------------------------------------------------
def record_replies(job: Job, replies: Sequence[Message], received: int, sent: int) -> None:
    """Keep a line per round as any run has: the loss, the own score of the shared model, and the bytes.

    The shared model of a round is scored when it arrives, with the next round's request: its score belongs to the line
    before.
    """
    folder = RunFolder(job.folder)
    lines = {int(line["round"]): line for line in folder.metrics()}
    for reply in replies:
        if reply.kind == "train":
            known = {"seconds": 0.0, "bytes_up": sent, "bytes_down": received, "dropped": 0}
            loss = reply.numbers.get("loss")
            lines[reply.round] = {
                "round": reply.round, **known, **({"loss": loss} if isinstance(loss, float) else {})
            }  # fmt: skip
        elif reply.kind in ("client", "own") and reply.round - 1 in lines and int(reply.tensors["samples"]):
            score = reply.tensors.get("value", reply.tensors["hits"].double() / reply.tensors["samples"])
            if float(reply.tensors.get("error", 0.0)) >= 0:
                lines[reply.round - 1]["client" if reply.kind == "client" else "personal"] = float(score)
    if lines:
        folder.write_metrics([lines[round] for round in sorted(lines)])


# -- scores ------------------------------------------------------------------------------------------------------------
def keep_scores(member: Membership, job: Job, request: Message) -> dict[str, Single]:
    """Score both models on the own test data and write what any run leaves; returns their predictions."""
    client, runtime = member.kit.number, ClientRuntime(job)
    found: dict[str, Single] = {}
    if len(job.federation.local_test[client]):
        if job.shares_a_model:
            runtime.load(request.tensors, {})
            found["shared"] = runtime.predict_local(client)
        own = runtime.predict_with_kept(request, client)
        if own is not None:
            found["personal"] = own
    scores = own_scores(job, client, found)
    table = client_table(job, scores)
    table["clients"] = [member.kit.name for _ in table["clients"]]
    write_json(job.folder / CLIENT_SCORES, table)
    history = RunFolder(job.folder).metrics()
    costs = {"seconds": 0.0, "cpu_seconds": 0.0, "peak_memory": 0}
    summary = summarise(job, history, scores, None, costs, {}, StageCosts())
    write_json(
        job.folder / SUMMARY, {**summary, "spread": spreads(table, job.settings.score_metric), "node": member.kit.name}
    )
    return found


def own_scores(job: Job, client: int, found: Mapping[str, Single]) -> Scores:
    """The scores of one client's two models."""
    scores = Scores()
    for kind, predictions in found.items():
        score = job.score(predictions)
        hits = float(predictions.right.sum())
        exact = [score] if job.settings.score_metric != "accuracy" or job.target is not None else None
        each = ByClient([client], [hits], [predictions.samples], exact)
        mean, weighted, count = each.means()
        if kind == "shared":
            scores = with_client(Scores(pooled={"client": predictions}), each)
        else:
            own = Scores(
                personal=mean,
                personal_weighted=weighted,
                personal_count=count,
                personal_per_class=recognised(predictions),
                by_client={"personal": each},
                pooled={"personal": predictions},
            )
            scores = with_personal(scores, own)
    return scores


# -- alone -------------------------------------------------------------------------------------------------------------
def settings_alone(settings: Settings) -> Settings:
    """The federation's settings for training alone: as many rounds, without the others."""
    usual = Settings().model_dump(include={*NOT_ALONE, "log", "measure"})
    visits = max(1, round(settings.rounds * settings.participation)) if settings.rounds else 0
    changed = {"method": "local", "clients": 1, "participation": 1.0, "rounds": visits, "workers": 1}
    return settings.model_copy(update={**alone_settings(settings, save=True), **usual, **changed})


def train_alone(member: Membership, progress: bool = True) -> Path:
    """Train on the own data only, in the node's folder, unless that was done with these data and settings."""
    maker = JobMaker(settings_alone(member.settings), member.alone, None)
    folder = member.folder / ALONE
    job = maker.make(folder)
    if (folder / SUMMARY).exists() and same_training(job, RunFolder(folder)):
        return folder
    run = RunFolder(folder)
    if not (folder / "config.yaml").exists() or not same_training(job, run):
        run = RunFolder.create(fresh(folder), maker.settings)
    run.write_settings(maker.settings)
    with choose_display(progress) as display:
        execute(job, run, display)
    return folder


def same_training(job: Job, run: RunFolder) -> bool:
    """Whether a folder holds a training with the same data, net and settings."""
    found = run.checkpoint()
    return found is not None and found[2]["fingerprint"] == job.fingerprint() and run.settings() == job.settings


def fresh(folder: Path) -> Path:
    """The folder, where what an earlier training alone has left is set aside under another name."""
    number = 1
    while folder.exists():
        aside = folder.with_name(f"{folder.name}-{number}")
        if not aside.exists():
            folder.rename(aside)
        number += 1
    return folder


def predictions_alone(member: Membership) -> Single | None:
    """What the model that was trained alone predicts for the own test data; None if there is none."""
    folder = member.folder / ALONE
    if not (folder / SUMMARY).exists():
        return None
    job = JobMaker(settings_alone(member.settings), member.alone, None).make(folder)
    if not same_training(job, RunFolder(folder)) or not len(job.federation.local_test[0]):
        return None
    runtime = ClientRuntime(job)
    load_tensors(runtime.model, read_tensors(RunFolder(folder).personal_model(0))[0])
    return runtime.predict_local(0)


# -- gain --------------------------------------------------------------------------------------------------------------
def keep_gain(member: Membership, job: Job, joined: Mapping[str, Single]) -> dict[str, Any] | None:
    """Write the node's gain, if it has trained alone; returns its row."""
    alone = predictions_alone(member)
    table = read_json(job.folder / CLIENT_SCORES)
    if alone is None or not table["clients"]:
        return None
    found = job.score(alone)  # the federation's metric, which may have been chosen after the training alone
    score = {end: getattr(found, end) for end in ("value", "low", "high")} if found is not None else None
    row = compare_client(table, score, 0, job.settings.score_metric)
    name = member.kit.name
    by_model = {kind: {name: each} for kind, each in {**joined, "alone": alone}.items()}
    row = with_pairs(row, job, by_model, name)
    write_gain(job.folder, job.settings.score_metric, [row])
    return row


def reply_numbers_of(row: dict[str, Any] | None) -> dict[str, Number]:
    """The gain as numbers of a reply; nothing where there is none."""
    return {} if row is None or row["gain"] is None else gain_numbers(row["alone"], row["gain"])
