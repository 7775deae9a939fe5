"""Commands of a federation over a network: federation new, survey, serve, start, ..., join, audit."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from fedframe.cli.app import app, interruptible
from fedframe.cli.hints import HintingGroup
from fedframe.cli.options import part_settings, with_settings, with_table_options
from fedframe.errors import DataError, RunError, SettingError

federation = typer.Typer(
    cls=HintingGroup,
    help="Train among organisations that keep their data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(federation, name="federation")

# Settings that are not a federation's: the data and the machines are the nodes'.
NODE_SETTINGS = (
    "data", "data_dir", "client_column", "partition", "clients", "min_client_size", "test_share", "validate_share",
    "data_share", "engine", "nodes", "workers", "device", "save_personal", "personal_clients", "eval_clients",
)  # fmt: skip
Folder = Annotated[Path, typer.Argument(help="the federation's folder")]


def require_flower() -> None:
    """Refuse with what to install if Flower is missing; nothing of it calls home."""
    from fedframe.network.flower.environment import quiet_logs, require_packages

    require_packages("flwr", "cryptography")
    quiet_logs()


@federation.command("new")
@with_table_options("like", "--like csv:PATH")
@functools.partial(with_settings, without=NODE_SETTINGS)
def new_command(
    folder: Folder,
    nodes: Annotated[str, typer.Option(help="names of the nodes, separated by commas: north,south,west")],
    host: Annotated[str, typer.Option(help="where nodes find this machine; several names separated by commas")],
    method: Annotated[str, typer.Option(help="method, or methods and parts joined with +")] = "fedavg",
    port: Annotated[int, typer.Option(min=1, max=65535, help="the port that nodes connect to")] = 8443,
    like: Annotated[
        Optional[str], typer.Option(help="data of the same form (a public sample): classes, shape, normalisation")
    ] = None,
    classes: Annotated[
        Optional[str],
        typer.Option(
            help="names of the classes that all share: benign,malignant; or of the numbers or labels to learn"
        ),
    ] = None,
    shape: Annotated[Optional[str], typer.Option(help="of a sample: 64x64x3, or a number for vectors")] = None,
    mean: Annotated[str, typer.Option(help="normalisation: mean, images as a share of white")] = "0.5",
    std: Annotated[str, typer.Option(help="normalisation: standard deviation, in the unit of --mean")] = "0.25",
    survey: Annotated[
        bool, typer.Option("--survey", help="let a later survey of the nodes find out what the data look like")
    ] = False,
    target_mean: Annotated[str, typer.Option(help="regression without --like: approximate mean of the numbers")] = "",
    target_std: Annotated[
        str, typer.Option(help="regression without --like: their approximate standard deviation")
    ] = "",
    with_weights: Annotated[
        bool, typer.Option("--with-weights", help="put the file of --weights into every kit")
    ] = False,
    config: Annotated[Optional[Path], typer.Option(help="YAML file of settings")] = None,
    set_: Annotated[
        Optional[list[str]], typer.Option("--set", help="setting of a part: --set fine_tune.epochs=3")
    ] = None,
    **settings: Any,
) -> None:
    """Make a federation: keys, certificates, a kit per node, and the run that all agree on."""
    require_flower()
    from fedframe.federation.agreement import DRAFT
    from fedframe.federation.approval import settings_digest
    from fedframe.federation.create import form_from_data, form_from_description, new_federation
    from fedframe.jobs.gather import gather
    from fedframe.network.compatibility import price_of_smaller_sums
    from fedframe.util.allowed_code import allow_typed

    allow_typed(method, settings.get("model"))
    asked = gather({**settings, "method": method, "set": part_settings(set_ or [])}, config)
    if survey and (like or classes or shape):
        raise SettingError("survey: what data look like comes from the nodes; leave --like, --classes and --shape out.")
    if survey:
        form = DRAFT
    elif like is not None:
        form = form_from_data(like, asked)
    elif classes is not None and shape is not None:
        form = form_from_description(classes, shape, mean, std, asked.task, target_mean, target_std)
    else:
        raise SettingError(
            "Say what data look like: --like csv:sample.csv for tables (a few rows of the same form, with every "
            "category), --like imagefolder:sample/, --classes cat,dog --shape 64x64x3, or --survey to ask the nodes."
        )
    hosts = [name.strip() for name in host.split(",") if name.strip()]
    members = [name.strip() for name in nodes.split(",") if name.strip()]
    made = new_federation(folder, members, hosts, port, form, asked, with_weights)
    if (price := price_of_smaller_sums(asked, len(members))) is not None:
        typer.echo(price)
    typer.echo(
        f"{made.path} is ready: {len(members)} kits in {made.path / 'kits'}; read {made.path / 'GUIDE.md'} next."
    )
    typer.echo(f"Digest of the agreed settings: {settings_digest(made.agreement())} (what nodes approve).")


@federation.command()
def serve(
    folder: Folder,
    bind: Annotated[
        Optional[str], typer.Option(help="address to listen at (default: all; 127.0.0.1 if that is the host)")
    ] = None,
) -> None:
    """Start the SuperLink, wait for the nodes, and keep it running until Ctrl-C."""
    require_flower()
    from fedframe.federation.folder import FederationFolder
    from fedframe.federation.serve import serve as serve_federation

    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    made = FederationFolder.open(folder)
    is_local = made.agreement().host in ("127.0.0.1", "localhost")  # nobody dials it from elsewhere
    serve_federation(made, bind or ("127.0.0.1" if is_local else "0.0.0.0"), echo, stopping)
    typer.echo("Stopped serving.")


@federation.command("survey")
def survey_command(
    folder: Folder,
    columns: Annotated[
        str, typer.Option(help="which columns become inputs: those that any, most or all members have")
    ] = "most",
    size: Annotated[Optional[int], typer.Option(min=8, max=4096, help="side of images (default: from theirs)")] = None,
    new: Annotated[
        bool, typer.Option("--new", help="begin a new survey, even if the last one is not finished")
    ] = False,
) -> None:
    """Ask all nodes what their data look like, and make the agreement from it."""
    require_flower()
    with interruptible():
        from fedframe.federation.folder import FederationFolder
        from fedframe.federation.survey import survey as run_survey

        run_survey(FederationFolder.open(folder), echo, columns=columns, size=size, new=new)


@federation.command()
def health(folder: Annotated[Path, typer.Argument(help="the folder of a federation or of a node")]) -> None:
    """Check that this folder's server or node runs on this machine; it is an error if not (for health checks)."""
    from fedframe.federation.health import check_health

    echo(check_health(folder))


@federation.command()
def start(
    folder: Folder,
    new: Annotated[
        bool, typer.Option("--new", help="begin a new training, whether the last one is finished or not")
    ] = False,
    test_data: Annotated[
        Optional[str], typer.Option(help="test data of the organiser's own, for the generic score")
    ] = None,
    without: Annotated[
        Optional[str], typer.Option(help="nodes that come later, if the method can add them: west,east")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Train, or continue after the last finished round."""
    require_flower()
    with interruptible():
        from fedframe.federation.folder import FederationFolder
        from fedframe.federation.start import start as start_training

        late = [name.strip() for name in without.split(",")] if without else []
        start_training(FederationFolder.open(folder), new=new, test_data=test_data, without=late, progress=not quiet)


@federation.command()
def update(
    folder: Folder,
    forget: Annotated[Optional[str], typer.Option(help="a node whose sums are taken out of the model")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show nothing but errors")] = False,
) -> None:
    """Add nodes that came late to the finished training, solve again, and send the model to the nodes."""
    require_flower()
    with interruptible():
        from fedframe.federation.folder import FederationFolder
        from fedframe.federation.update import update as update_training

        update_training(FederationFolder.open(folder), forget=forget, progress=not quiet)


@federation.command()
def status(folder: Folder) -> None:
    """Show who is connected and how far the training is."""
    require_flower()
    from fedframe.federation.folder import FederationFolder
    from fedframe.federation.status import status_lines

    for line in status_lines(FederationFolder.open(folder)):
        typer.echo(line)


@federation.command()
def stop(
    folder: Folder,
    training: Annotated[
        bool, typer.Option("--training", help="stop only the training; the SuperLink keeps running")
    ] = False,
) -> None:
    """Stop the training and the SuperLink of this machine; finished rounds are kept."""
    from fedframe.federation.folder import FederationFolder

    made = FederationFolder.open(folder)
    found = {what: made.process(what) for what in ("start", "serve") if not (training and what == "serve")}
    for what, pid in found.items():
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            typer.echo(f"Asked process {pid} ({what}) to stop.")
    if not any(found.values()):
        raise RunError(f"Nothing of {folder} runs on this machine.")


@federation.command()
def add(folder: Folder, node: Annotated[str, typer.Argument(help="the new node's name, such as east-clinic")]) -> None:
    """Add a node: make its key and kit, and a new version of the agreement for all."""
    require_flower()
    from fedframe.federation.folder import FederationFolder
    from fedframe.federation.members import add_member

    add_member(FederationFolder.open(folder), node, echo)


@federation.command()
def remove(folder: Folder, node: Annotated[str, typer.Argument(help="the name of the node that leaves")]) -> None:
    """Remove a node: it cannot connect any more, and all others need the new version of the agreement."""
    require_flower()
    from fedframe.federation.folder import FederationFolder
    from fedframe.federation.members import remove_member

    remove_member(FederationFolder.open(folder), node, echo)


@federation.command()
def audit(
    folder: Annotated[Path, typer.Argument(help="the folder of a federation or of a node")],
    run: Annotated[Optional[str], typer.Option(help="only what belongs to this run")] = None,
    head: Annotated[Optional[str], typer.Option(help="a head that was noted earlier, NUMBER:HASH")] = None,
    against: Annotated[
        Optional[Path], typer.Option(help="compare with the organiser's folder, or with a copy of its log")
    ] = None,
) -> None:
    """Verify the chain of the audit log, and list what left and when."""
    from fedframe.federation.audit import check_head, compare, describe, verify

    found = verify(folder, check_head(head))
    *lines, last = describe(folder, found, run)
    for line in (*lines, *(compare(found, verify(against)) if against is not None else ())):
        echo(line)
    if found.faults:
        raise DataError(last)
    echo(last)


@federation.command()
@with_table_options()
def join(
    kit: Annotated[
        Path, typer.Argument(help="the kit that the organiser handed over (north-kit.zip), later this node's folder")
    ],
    data: Annotated[str, typer.Option(help="this node's own data, see 'fedframe list'")],
    out: Annotated[Optional[Path], typer.Option(help="folder of this node (default: named after the kit)")] = None,
    test_share: Annotated[
        Optional[float], typer.Option(help="share of the data held out for testing (default: as agreed)")
    ] = None,
    label: Annotated[Optional[str], typer.Option(help="label column of tabular data (default: as agreed)")] = None,
    device: Annotated[str, typer.Option(help="where this node trains: cpu, cuda or cuda:1")] = "cpu",
    epsilon_limit: Annotated[
        Optional[float],
        typer.Option(help="largest epsilon of all private runs together; beyond it this node no longer answers"),
    ] = None,
    ledger: Annotated[
        Optional[Path],
        typer.Option(help="file that counts the privacy spent; give federations on the same data the same one"),
    ] = None,
    runs_limit: Annotated[int, typer.Option(help="most runs that this node takes part in")] = 100,
    peers: Annotated[
        str, typer.Option(help="codes of the other members' keys, as they read them out: south=AB12-...,west=CD34-...")
    ] = "",
    agreement: Annotated[
        Optional[Path],
        typer.Option(help="a newer federation.yaml of the organiser, after nodes were added or removed"),
    ] = None,
    approve: Annotated[
        Optional[str],
        typer.Option(
            help="settings that this node approves: ask, any, or their digest (default: the first ones, until they "
            "change)"
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="approve what a survey would report, which is printed first")
    ] = False,
    least: Annotated[int, typer.Option(help="in a survey: report nothing about fewer rows than this (5 or more)")] = 5,
    check: Annotated[bool, typer.Option("--check", help="only check the data and print what would leave")] = False,
    once: Annotated[bool, typer.Option("--once", help="leave when a run is over, instead of staying for more")] = False,
    tell_gain: Annotated[
        bool, typer.Option("--tell-gain", help="train alone first, and tell the organiser what joining gives")
    ] = False,
) -> None:
    """Take part with this node's own data: check them, print what leaves, join and stay."""
    require_flower()
    with interruptible():
        from fedframe.federation.approval import MEMBERS, check_policy, settings_digest
        from fedframe.federation.join import Limits, Membership, make_node, read_peers
        from fedframe.federation.kit import Kit
        from fedframe.federation.members import renewed
        from fedframe.federation.node_folder import check_node_folder
        from fedframe.federation.survey_node import SurveyNode, without_columns

        own = newest_kit(Kit.read(kit), out)
        if agreement is not None:
            own, news = renewed(own, agreement, only_members=approve is None)
            for line in news:
                echo(line)
        folder = (out or (kit if kit.is_dir() else Path(f"{own.name}-node"))).absolute()
        if not check:  # before data are loaded for nothing
            check_node_folder(own, folder)
        allowed = (MEMBERS,) if agreement is not None else ()
        limits = Limits(epsilon_limit, ledger, runs_limit, read_peers(peers), check_policy(approve), allowed)
        if own.agreement.is_draft:
            if tell_gain:
                raise SettingError("tell_gain: there is no agreement to train with yet; join with it after the survey.")
            options = {"test_share": test_share, "device": device}
            surveyed = SurveyNode(own, data, folder, echo, least=least, label=label, limits=limits, options=options)
            for line in surveyed.describe_outgoing():
                echo(line)
            if not check:
                surveyed.approve(yes)
                stay(surveyed.open(), own, surveyed, once)
            return
        data = without_columns(data, folder)
        member = Membership(own, data, folder, test_share, label, device, tell_gain, limits)
        for line in (*member.check(), *member.describe_outgoing()):
            echo(line)
        echo(f"Digest of the agreed settings: {settings_digest(own.agreement)} (for --approve).")
        if check:
            return
        node = make_node(member, echo)
        if tell_gain:
            from fedframe.federation.own_results import train_alone

            echo("Training alone first, for comparison (--tell-gain). The result stays in this node's folder.")
            train_alone(member, progress=False)
        stay(node, own, member, once)


def newest_kit(kit: Any, out: Path | None) -> Any:
    """The kit, or the one in the node's folder where a survey has made a draft an agreement there."""
    from fedframe.federation.kit import Kit

    folder = (out or Path(f"{kit.name}-node")).absolute()
    if not kit.agreement.is_draft or not (folder / "federation.yaml").exists():
        return kit
    kept = Kit.read(folder)
    return kept if (kept.key, kept.name) == (kit.key, kit.name) else kit


def stay(node: Any, kit: Any, member: Any, once: bool) -> None:
    """Take part until Ctrl-C, or until a run is over."""
    echo(f"Joining {kit.agreement.name} at {kit.agreement.address} as {kit.name}; stop with Ctrl-C.")
    if once:
        threading.Thread(target=leave_when_done, args=(member, node.stopping), daemon=True).start()
    try:
        node.serve_forever()
    except KeyboardInterrupt as stop:
        stop.add_note(f"{kit.name} has left; the same command joins again.")
        raise


def leave_when_done(member: Any, stopping: threading.Event) -> None:
    """End the node once a run is over and its last reply has gone out."""
    while not stopping.wait(1.0):
        if member.done:
            stopping.wait(20.0)  # the SuperNode polls for replies every half second, and sends the last one then
            stopping.set()


def echo(text: str) -> None:
    """Print and flush, so that a log file can be followed; a log on a full disk must not end a node."""
    with contextlib.suppress(OSError):
        print(text, flush=True)
