"""`fedframe federation add` and `remove`: another list of members, as a new version of the agreement.

Keys of the other members are theirs alone by now, so that they get no new kits: the organiser hands them the new
federation.yaml, which holds no secret, and they join with it once.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedframe.errors import DataError, RunError, SettingError, nearest
from fedframe.federation.agreement import Agreement
from fedframe.federation.approval import changes, listed, settings_digest, terms_of
from fedframe.federation.create import check_federation
from fedframe.federation.folder import AGREEMENT, FederationFolder
from fedframe.federation.kit import Kit
from fedframe.federation.serve import connect_superlink, register_members
from fedframe.settings import Settings
from fedframe.util.plain_files import refuse_pipe


def add_member(folder: FederationFolder, name: str, notify: Callable[[str], None]) -> Agreement:
    """Make a key and a kit for a new member, and a new version of the agreement; others keep their numbers."""
    from fedframe.network.certificates import make_node_key

    agreement = folder.agreement()
    if name.lower() in map(str.lower, agreement.members):
        raise SettingError(f"node = {name!r} is a member of {agreement.name} already; give the new one its own name.")
    changed = with_members(agreement, (*agreement.members, name))
    with while_not_training(folder):
        private = folder.keys / f"{name}.key"
        public, archive = folder.keys / "nodes" / f"{name}.pub", folder.kit(name)
        for old in (private, public, archive):  # of an earlier try that was cut off
            old.unlink(missing_ok=True)
        try:
            make_node_key(private, public)
            ca = (folder.keys / "ca.pem").read_bytes()
            Kit(name, changed, ca, private.read_bytes(), folder.weights(changed)).write(archive)
            folder.change(changed)
        except BaseException:
            public.unlink(missing_ok=True)
            archive.unlink(missing_ok=True)
            raise
        finally:
            private.unlink(missing_ok=True)  # from here on only the kit has it
        told = tell_superlink(folder)
    notify(f"{name} is a member of {changed.name}; its kit is {archive}: hand it over safely, then delete it.")
    say_what_to_do(folder, changed, agreement.members, told, notify)
    return changed


def remove_member(folder: FederationFolder, name: str, notify: Callable[[str], None]) -> Agreement:
    """Take a member out of the agreement, its key out of the folder, and its way in from the SuperLink."""
    agreement = folder.agreement()
    if name not in agreement.members:
        raise SettingError(f"node = {name!r} is no member of {agreement.name}; {nearest(name, agreement.members)}")
    left = tuple(each for each in agreement.members if each != name)
    if len(left) < 2:
        raise SettingError(
            f"node = {name!r}: {agreement.name} would have one member left, and a federation has at least two; add "
            "another one first."
        )
    changed = with_members(agreement, left)
    with while_not_training(folder):
        folder.change(changed)
        (folder.keys / "nodes" / f"{name}.pub").unlink(missing_ok=True)
        folder.kit(name).unlink(missing_ok=True)
        told = tell_superlink(folder)
    notify(
        f"{name} is no longer a member of {changed.name}, and cannot connect. Models that were trained with its data "
        "stay as they are."
    )
    say_what_to_do(folder, changed, left, told, notify)
    return changed


def with_members(agreement: Agreement, names: tuple[str, ...]) -> Agreement:
    """The next version of an agreement, with other members; what cannot work with them is refused."""
    version = agreement.version + 1
    settings = check_federation(with_clients(agreement, len(names), version), agreement.form, names)
    return replace(agreement, members=names, settings=settings, version=version)


@contextlib.contextmanager
def while_not_training(folder: FederationFolder) -> Iterator[None]:
    """Keep a training from beginning meanwhile; one that goes on is not touched."""
    if (process := folder.process("start")) is not None:
        stop = f"fedframe federation stop {shlex.quote(str(folder.path))} --training"
        raise RunError(
            f"A training of {folder.path} is under way (process {process}), so its members cannot change; wait "
            f"for its end, or stop it with: {stop}"
        )
    with folder.exclusive("start", "changes the members of"):
        yield


def tell_superlink(folder: FederationFolder) -> bool:
    """Let the new member in and the old one out, if the SuperLink runs; else it learns of it when it starts."""
    if folder.process("serve") is None:
        return False
    try:
        superlink = connect_superlink(folder)
        try:
            register_members(folder, superlink)
        finally:
            superlink.close()
    except RunError:
        return False
    return True


def say_what_to_do(
    folder: FederationFolder, changed: Agreement, others: Sequence[str], told: bool, notify: Callable[[str], None]
) -> None:
    """What is left to do, here and at the members."""
    path = shlex.quote(str(folder.path))
    notify(f"The agreement is version {changed.version} now, with {', '.join(changed.members)}.")
    notify(
        f"Hand {folder.path / AGREEMENT} to {', '.join(others)} (nothing in it is secret); each of them runs once: "
        f"fedframe federation join NAME-node --agreement {AGREEMENT} --data ..."
    )
    if not told:
        notify(f"The SuperLink learns of it when it starts: fedframe federation serve {path}")
    notify(f"The next training is a new one: fedframe federation start {path} --new")


def renewed(kit: Kit, path: Path, only_members: bool = True) -> tuple[Kit, list[str]]:
    """A node's kit with a newer agreement, and what is new in it.

    With `only_members` anything else must be as it was; otherwise it is for the node's people to approve the rest.
    """
    refuse_pipe(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"agreement = {path}: cannot be read; use the federation.yaml of the organiser.") from error
    old, new = kit.agreement, Agreement.read(text, str(path))
    if new.text() == old.text():
        return kit, [f"{path} is the agreement that this node has already (version {old.version})."]
    if kit.name not in new.members:
        raise DataError(f"{path}: {kit.name} is no member of this agreement; ask the organiser.")
    if new.version <= old.version:
        raise DataError(
            f"{path} is version {new.version} of the agreement, and this node has version {old.version}; ask the "
            "organiser for the newest federation.yaml."
        )
    same = replace(
        old, members=new.members, version=new.version, settings=with_clients(old, len(new.members), new.version)
    )
    if same.text() != new.text():
        if only_members:
            news = [text for text in changes(terms_of(old), terms_of(new)) if not text.startswith("members ")]
            raise DataError(
                f"{path} changes more than the members of {old.name}: {listed(news) or 'where they meet'}; if this "
                f"node approves that, join with --approve {settings_digest(new)} (the digest of these settings)."
            )
        if new.name != old.name:
            raise DataError(f"{path} is the agreement of {new.name}, and this node is one of {old.name}.")
    joined = [name for name in new.members if name not in old.members]
    left = [name for name in old.members if name not in new.members]
    words = [f"{what}: {', '.join(names)}" for what, names in (("new", joined), ("gone", left)) if names]
    said = f"Version {new.version} of the agreement ({'; '.join(words)}); members are {', '.join(new.members)}."
    return replace(kit, agreement=new), [said]


def with_clients(agreement: Agreement, count: int, version: int) -> Settings:
    """The settings of a later version of an agreement, for another number of members.

    Secure sums of two runs from the same seed, with a member and without it, differ in round 1 by exactly its update.
    """
    settings = agreement.settings
    seed = (settings.seed + version - agreement.version) % (1 << 63) if settings.secure else settings.seed
    return settings.model_copy(update={"clients": count, "seed": seed})
