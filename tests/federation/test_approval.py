"""A node takes part with settings that its people have approved, and with others only once they have approved those."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedframe.errors import DataError, SettingError
from fedframe.federation import approval
from fedframe.federation.agreement import Agreement
from fedframe.federation.approval import APPROVED, approve, check_policy, settings_digest, terms_of
from fedframe.federation.audit import verify
from fedframe.federation.create import form_from_description, new_federation
from fedframe.federation.join import Limits, Membership, make_node
from fedframe.federation.kit import Kit
from fedframe.federation.members import renewed
from fedframe.jobs.gather import gather
from tests.federation.clinic import write_arrays


def agreement(**settings: Any) -> Agreement:
    asked = gather({"method": "fedavg", "model": "mlp:8", "rounds": 3, **settings}, None)
    return Agreement(
        "clinic", "127.0.0.1", 9000, ("north", "south"), form_from_description("a,b", "6", "0", "1"), asked
    )


def refused(changed: Agreement, folder: Path, policy: str | None = None, **options: Any) -> str:
    with pytest.raises(SettingError) as caught:
        approve(changed, folder, policy, print, **options)
    return str(caught.value)


def test_the_first_settings_are_approved_and_a_changed_one_is_refused_until_it_is(tmp_path: Path) -> None:
    first, changed = agreement(), agreement(rounds=50, lr=0.02)
    approve(first, tmp_path, None, print)
    approve(first, tmp_path, None, print)
    said = refused(changed, tmp_path)
    assert "lr is 0.02 (was 0.1), rounds is 50 (was 3)" in said
    assert f"--approve {settings_digest(changed)}" in said
    approve(changed, tmp_path, settings_digest(changed), print)
    approve(changed, tmp_path, None, print)  # it is the approved one now
    assert "rounds is 3 (was 50)" in refused(first, tmp_path)
    events = [(each["event"], each["settings"]) for each in verify(tmp_path).records]
    one, other = settings_digest(first), settings_digest(changed)
    assert events == [("approved", one), ("refused", other), ("approved", other), ("refused", one)]


def test_a_digest_holds_for_its_settings_alone(tmp_path: Path) -> None:
    first, changed = agreement(), agreement(lr=0.02)
    pinned = settings_digest(first)
    said = refused(changed, tmp_path, pinned)
    assert settings_digest(changed) in said
    assert not (tmp_path / APPROVED).exists()
    approve(first, tmp_path, pinned, print)
    assert "lr is 0.02 (was 0.1)" in refused(changed, tmp_path, pinned)


@pytest.mark.parametrize(
    "change",
    [
        {"members": ("north", "south", "west")},
        {"name": "another"},
        {"form": form_from_description("a,c", "6", "0", "1")},
        {"form": form_from_description("a,b", "6", "0", "2")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_is_done_with_the_data_is_in_the_digest(tmp_path: Path, change: dict[str, Any]) -> None:
    first = agreement()
    other = replace(first, **change)
    assert settings_digest(other) != settings_digest(first)
    approve(first, tmp_path, None, print)
    refused(other, tmp_path)
    elsewhere = replace(first, host="127.0.0.2", port=1, version=9)
    assert settings_digest(elsewhere) == settings_digest(first)
    approve(elsewhere, tmp_path, None, print)


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
def test_every_setting_is_in_the_digest() -> None:
    first = agreement()
    for name, value in first.settings.model_dump(mode="json").items():
        if name in ("clients", "data"):
            continue
        other = replace(
            first, settings=first.settings.model_copy(update={name: "another" if value != "another" else 1})
        )
        assert settings_digest(other) != settings_digest(first), name


def test_a_setting_that_a_newer_program_has_changes_nothing_at_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, plain = agreement(), terms_of
    approve(first, tmp_path, None, print)
    before = settings_digest(first)
    monkeypatch.setitem(approval.DEFAULTS, "brand_new", 1)
    monkeypatch.setattr(approval, "terms_of", lambda each: {**plain(each), "brand_new": 1})
    assert settings_digest(first) == before
    approve(first, tmp_path, None, print)
    monkeypatch.setattr(approval, "terms_of", lambda each: {**plain(each), "brand_new": 2})
    assert "brand_new is 2 (was 1)" in refused(first, tmp_path)


def test_any_takes_all_and_takes_it_down(tmp_path: Path) -> None:
    said: list[str] = []
    approve(agreement(), tmp_path, "any", said.append)
    approve(agreement(lr=0.02), tmp_path, "any", said.append)
    assert "lr is 0.02 (was 0.1)" in said[-1]
    assert [each["by"] for each in verify(tmp_path).records] == ["any", "any"]


def test_ask_asks_a_person_and_without_one_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(yes: bool) -> Callable[[str], bool]:
        def reply(question: str) -> bool:
            asked.append(question)
            return yes

        return reply

    first = agreement()
    refused(first, tmp_path, "ask", ask=answer(False))
    approve(first, tmp_path, "ask", print, ask=answer(True))
    approve(first, tmp_path, "ask", print, ask=answer(False))  # what is approved is not asked again
    assert len(asked) == 2
    assert settings_digest(first) in asked[0]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))  # a pipe is no person
    assert "lr is 0.02 (was 0.1)" in refused(agreement(lr=0.02), tmp_path, "ask")


def test_what_cannot_be_a_policy_is_refused() -> None:
    assert check_policy("AB" * 16) == "ab" * 16
    for text in ("none", "ab12", "z" * 32):
        with pytest.raises(SettingError, match="use ask, any, or the digest"):
            check_policy(text)


# -- with kits and folders ---------------------------------------------------------------------------------------------
def kit_of(folder: Path, **settings: Any) -> Kit:
    asked = gather({"method": "fedavg", "model": "mlp:8", "rounds": 3, **settings}, None)
    form = form_from_description("a,b,c", "6", "0", "1")
    return Kit.read(
        new_federation(folder / "clinic", ["north", "south"], ["127.0.0.1"], 9000, form, asked).kit("north")
    )


def join(kit: Kit, folder: Path, **limits: Any) -> None:
    member = Membership(kit, write_arrays(folder / "own.npz", 1), folder / "north-node", limits=Limits(**limits))
    try:
        make_node(member, lambda text: None)
    finally:
        assert member.lock is not None
        member.lock.release()


def test_a_changed_kit_is_not_installed_until_it_is_approved(tmp_path: Path) -> None:
    kit = kit_of(tmp_path)
    join(kit, tmp_path)
    other = replace(kit.agreement, settings=kit.agreement.settings.model_copy(update={"lr": 0.5}))
    with pytest.raises(SettingError, match=r"lr is 0\.5 \(was 0\.1\)"):
        join(replace(kit, agreement=other), tmp_path)
    assert Kit.read(tmp_path / "north-node").agreement.settings.lr == 0.1
    join(replace(kit, agreement=other), tmp_path, approve=settings_digest(other))
    assert Kit.read(tmp_path / "north-node").agreement.settings.lr == 0.5


def test_a_folder_from_before_approvals_has_approved_what_it_has(tmp_path: Path) -> None:
    kit = kit_of(tmp_path)
    join(kit, tmp_path)
    (tmp_path / "north-node" / APPROVED).unlink()
    other = replace(kit.agreement, settings=kit.agreement.settings.model_copy(update={"lr": 0.5}))
    with pytest.raises(SettingError, match=r"lr is 0\.5 \(was 0\.1\)"):
        join(replace(kit, agreement=other), tmp_path)
    join(kit, tmp_path)
    assert (tmp_path / "north-node" / APPROVED).exists()


def test_a_file_that_is_named_changes_the_members_and_with_a_digest_more(tmp_path: Path) -> None:
    kit, file = kit_of(tmp_path), tmp_path / "federation.yaml"
    join(kit, tmp_path)
    settings = kit.agreement.settings.model_copy(update={"clients": 3})
    more = replace(kit.agreement, members=("north", "south", "west"), version=2, settings=settings)
    more.write(file)
    own, _ = renewed(kit, file)
    with pytest.raises(SettingError, match="members is north, south, west"):
        join(own, tmp_path)
    join(own, tmp_path, allowed=("members",))
    other = replace(more, version=3, settings=settings.model_copy(update={"rounds": 9}))
    other.write(file)
    with pytest.raises(DataError, match=rf"rounds is 9 \(was 3\).* --approve {settings_digest(other)}"):
        renewed(own, file)
    own, _ = renewed(own, file, only_members=False)
    with pytest.raises(SettingError, match=r"rounds is 9 \(was 3\)"):
        join(own, tmp_path, allowed=("members",))
    join(own, tmp_path, approve=settings_digest(other))
