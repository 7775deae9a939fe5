"""Members that come and go: keys, kits and versions of the agreement, and what the other members have to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from fedframe.errors import DataError, RunError, SettingError
from fedframe.federation.agreement import Agreement
from fedframe.federation.folder import FederationFolder
from fedframe.federation.join import Membership
from fedframe.federation.kit import Kit
from fedframe.federation.members import add_member, remove_member, renewed
from fedframe.federation.serve import register_members
from fedframe.federation.start import start
from fedframe.network.certificates import public_key_of
from fedframe.network.flower.superlink_client import SuperLinkClient
from fedframe.util.files import read_json
from tests.federation.clinic import Handled, make_clinic, write_arrays

Said = list[str]


def join(folder: Path, name: str, kit: Kit, seed: int) -> Handled:
    """A node in this process, with data of its own."""
    home = folder / f"{name}-node"
    home.mkdir(exist_ok=True)
    kit.install(home)
    return Handled(Membership(kit, write_arrays(folder / f"{name}.npz", seed), home))


def test_a_node_is_added_and_trains_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, transport = make_clinic(tmp_path, monkeypatch)
    start(made, progress=False)
    said: Said = []
    changed = add_member(made, "east", said.append)
    assert changed.members == ("north", "south", "west", "east")  # the others keep their numbers
    assert changed.version == 2
    assert made.agreement().text() == changed.text()
    assert changed.settings.clients == 4
    assert "east-kit.zip" in said[0]
    assert any("north, south, west" in line and "--agreement federation.yaml" in line for line in said)
    assert "version 2" in (made.path / "GUIDE.md").read_text()
    assert not (made.keys / "east.key").exists()
    kit = Kit.read(made.kit("east"))
    assert kit.agreement.text() == changed.text()
    transport.known["east"] = join(tmp_path, "east", kit, 9)  # type: ignore[assignment]
    with pytest.raises(RunError, match=r"north has an agreement with other members: .*--agreement federation.yaml"):
        start(made, new=True, progress=False)
    for number, name in enumerate(("north", "south", "west")):
        own, news = renewed(Kit.read(tmp_path / f"{name}-node"), made.path / "federation.yaml")
        assert news == ["Version 2 of the agreement (new: east); members are north, south, west, east."]
        transport.known[name] = join(tmp_path, name, own, number + 1)  # type: ignore[assignment]
    start(made, new=True, progress=False)
    found = read_json(made.runs / "2" / "client_scores.json")
    assert found["clients"] == ["north", "south", "west", "east"]
    assert None not in found["client"]


@pytest.mark.parametrize("secure", [False, True])
def test_under_secure_another_list_of_members_has_another_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """From the same seed the sums of round 1 with and without a member would differ by exactly its update."""
    made, _ = make_clinic(tmp_path, monkeypatch, secure=secure)
    before = made.agreement().settings.seed
    add_member(made, "east", print)
    changed = add_member(made, "far", print)
    assert changed.settings.seed == before + 2 * secure
    own, _ = renewed(Kit.read(tmp_path / "north-node"), made.path / "federation.yaml")  # no more than its members
    assert own.agreement.text() == changed.text()


def test_a_removed_node_has_no_key_and_no_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    said: Said = []
    changed = remove_member(made, "south", said.append)
    assert changed.members == ("north", "west")
    assert set(made.public_keys()) == {"north", "west"}
    assert not made.kit("south").exists()
    assert Kit.read(made.kit("west")).number == 1
    with pytest.raises(DataError, match="south is no member of this agreement"):
        renewed(Kit.read(tmp_path / "south-node"), made.path / "federation.yaml")
    with pytest.raises(SettingError, match="would have one member left"):
        remove_member(made, "north", said.append)
    again = add_member(made, "south", said.append)  # the same name with a new key
    assert again.version == 3
    assert public_key_of(Kit.read(made.kit("south")).key) != public_key_of(
        (tmp_path / "south-node/node.key").read_bytes()
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [("North", "is a member of clinic already"), ("a/b", "is no name; use letters"), ("7", "is no name")],
)
def test_a_name_that_cannot_be_added_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    before = sorted((path, path.read_bytes()) for path in made.path.rglob("*") if path.is_file())
    with pytest.raises(SettingError, match=message):
        add_member(made, name, print)
    with pytest.raises(SettingError, match="is no member of clinic; did you mean 'south'"):
        remove_member(made, "soth", print)
    assert sorted((path, path.read_bytes()) for path in made.path.rglob("*") if path.is_file()) == before


def test_members_do_not_change_while_a_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    with made.exclusive("start", "trains"):
        for change, name in ((add_member, "east"), (remove_member, "south")):
            with pytest.raises(RunError, match=r"is under way \(process \d+\).*federation stop .*clinic --training"):
                change(made, name, print)
    assert made.agreement().version == 1


def test_a_training_that_was_stopped_does_not_go_on_with_other_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    start(made, progress=False)
    (made.runs / "1" / "summary.json").unlink()  # as if it had been stopped
    add_member(made, "east", lambda text: None)
    with pytest.raises(SettingError, match=r"begun with north, south, west, and the members are .*east now.*--new"):
        start(made, progress=False)


def test_a_newer_agreement_may_change_nothing_but_the_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_clinic(tmp_path, monkeypatch)
    kit, file = Kit.read(tmp_path / "north-node"), tmp_path / "new.yaml"
    kit.agreement.write(file)
    assert renewed(kit, file)[0] == kit
    more = replace(kit.agreement, version=2)
    for other in (
        replace(more, settings=more.settings.model_copy(update={"rounds": 50})),
        replace(more, host="elsewhere.example.org"),
        replace(more, name="other"),
    ):
        other.write(file)
        with pytest.raises(DataError, match="changes more than the members of clinic"):
            renewed(kit, file)
    replace(kit.agreement, members=("north", "south"), version=1).write(file)
    with pytest.raises(DataError, match="is version 1 of the agreement, and this node has version 1"):
        renewed(kit, file)
    file.write_text("hello")
    with pytest.raises(DataError, match="no federation's agreement"):
        renewed(kit, file)


def test_the_first_version_is_written_as_it_always_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    text = made.agreement().text()
    assert "\nversion:" not in text
    assert Agreement.read(text, "it").version == 1


class Link:
    """A SuperLink's list of nodes."""

    def __init__(self) -> None:
        self.known: dict[str, bytes] = {}

    def nodes(self) -> dict[str, tuple[str, bytes]]:
        return {name: (name, key) for name, key in self.known.items()}

    def holds(self, node: tuple[str, bytes], key: bytes) -> bool:
        return node[1] == key

    def register(self, name: str, key: bytes) -> None:
        assert name not in self.known
        self.known[name] = key

    def unregister(self, node: tuple[str, bytes]) -> None:
        del self.known[node[0]]


def test_the_superlink_lets_in_who_is_a_member_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    link = Link()

    def registered(folder: FederationFolder) -> bool:
        register_members(folder, link)  # type: ignore[arg-type]
        return link.known == folder.public_keys()

    assert registered(made)
    remove_member(made, "west", lambda text: None)
    assert registered(made)
    old = link.known["south"]
    remove_member(add_and_open(made, "east"), "south", lambda text: None)
    assert registered(add_and_open(made, "south"))  # the same name with another key
    assert link.known["south"] != old


def add_and_open(folder: FederationFolder, name: str) -> FederationFolder:
    add_member(folder, name, lambda text: None)
    return folder


def test_a_node_that_was_unregistered_is_not_listed_as_one_and_its_name_is_free() -> None:
    """The real SuperLink lists such nodes for ever, and refuses to unregister them again."""

    class Control:
        def ListNodes(self, request: object) -> SimpleNamespace:  # noqa: N802, as Flower calls it
            nodes = [("south", "online", 1), ("south", "unregistered", 2), ("west", "unregistered", 3)]
            return SimpleNamespace(nodes_info=[SimpleNamespace(name=n, status=s, node_id=i) for n, s, i in nodes])

    client = SuperLinkClient.__new__(SuperLinkClient)
    client.control = Control()
    assert {name: node.node_id for name, node in client.nodes().items()} == {"south": 1}
