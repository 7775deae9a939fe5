"""The organiser's folder of a federation.

federation.yaml   what all members have agreed on
GUIDE.md          what to do next, on one page
keys/             the CA's and the server's keys, the nodes' public keys, the organiser's secret: for its owner only
kits/             an archive per node, to hand over
state/            the SuperLink's database and log, ids of running processes
runs/             a run folder per training, as any run leaves it
audit.jsonl       what was sent and what came, each line with the hash of the one before; audit.head is its end
serve.sh, start.sh   the two commands of the organiser
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from fedframe.errors import DataError, RunError, SettingError
from fedframe.federation import kit_weights
from fedframe.federation.agreement import Agreement
from fedframe.federation.approval import settings_digest
from fedframe.federation.audit import AuditLog
from fedframe.federation.kit import Kit
from fedframe.util.files import write_text
from fedframe.util.plain_files import read_text
from fedframe.util.processes import lock_with_pid, read_pid

AGREEMENT = "federation.yaml"
OUTCOME = "survey-outcome.json"  # in state/: what a survey has found
LOCK_TIMEOUT = 3.0  # seconds to wait for a process that ends, or that only checks the lock
GUIDE = """# The federation "{name}"

Members: {members}. They meet at {address}.

1. Hand every node its kit in `kits/` in a safe way (it contains that node's private key), then delete your copy.
   The folder `keys/` never leaves this machine, and only you can read this one.
2. Open port {port} of this machine for TCP from the nodes. Nothing else needs to be reachable.
3. Here: `fedframe federation serve {folder}` (in a terminal of its own, or as a service). It waits for the nodes.
4. At every node: `fedframe federation join NAME-kit.zip --data {data} --check` checks the data (any that
   Fedframe reads) and prints what would leave; the same without `--check` joins and stays. With `--tell-gain` it trains
   alone first, and reports at the end what joining gains.
5. Here: `fedframe federation status {folder}` shows who is connected.
6. Here: `fedframe federation start {folder}` trains: {method}, {rounds} rounds. With test data of your own,
   `--test-data {test}`, the shared model is scored on them. Ctrl-C stops it, and the
   same command continues it. A finished training is repeated only with `--new`.
7. Here: `fedframe report {first}` makes a page about the first training. Every node has the models in its own folder.
8. Here: `fedframe federation stop {folder}` ends the training and the SuperLink.

`serve.sh` and `start.sh` beside this file are the commands of 3 and 6. They work from any folder.

The agreement: {classes} classes ({some}), samples of shape {shape}, and all settings in `federation.yaml`. To change
any of these, make a new federation: nodes check that theirs is the same.

## Another member, or one fewer

This is version {version} of the agreement. While nothing trains, `fedframe federation add {folder} east` makes a key
and a kit for a new node, `fedframe federation remove {folder} east` takes one out. Each makes a new version. Then

- a new node gets its kit, as in 1;
- every other member gets the new `federation.yaml` (nothing in it is secret), stops its node, and joins with it once:
  `fedframe federation join NAME-node --agreement federation.yaml --data {data}`. It prints who is new and who is
  gone, and refuses a file that changes anything else. Until then the node is refused, with a sentence;
- the next training is a new one: `fedframe federation start {folder} --new`. Models of earlier trainings stay as they
  are, with what they learned from a node that has left.
"""

DRAFT_GUIDE = """# The federation "{name}", before its agreement

Members: {members}. They meet at {address}. A survey will find out what their data look like.

1. Hand every node its kit in `kits/` in a safe way (it contains that node's private key), then delete your copy.
   The folder `keys/` never leaves this machine, and only you can read this one.
2. Open port {port} of this machine for TCP from the nodes. Nothing else needs to be reachable.
3. Here: `fedframe federation serve {folder}` (in a terminal of its own, or as a service). It waits for the nodes.
4. At every node: `fedframe federation join NAME-kit.zip --data csv:own.csv --check` (any data that Fedframe reads)
   prints what a survey would report. The same without `--check` asks for approval, joins and stays.
5. Here: `fedframe federation survey {folder}` asks all of them, shows what fits and what does not, and makes the
   agreement, which every node checks against its data. After that, this page tells you how to train.
"""

SCRIPT = """#!/bin/sh
# {command} this federation
exec fedframe federation {command} "$(dirname "$0")" "$@"
"""


class FederationFolder:
    """A federation's files at the organiser."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def keys(self) -> Path:
        """Keys and certificates."""
        return self.path / "keys"

    @property
    def state(self) -> Path:
        """What running processes write."""
        return self.path / "state"

    @property
    def runs(self) -> Path:
        """Run folders."""
        return self.path / "runs"

    @functools.cached_property
    def audit(self) -> AuditLog:
        """What was sent and what came, line by line."""
        return AuditLog(self.path)

    @classmethod
    def open(cls, path: Path) -> FederationFolder:
        """Open an existing folder."""
        if not (path / AGREEMENT).exists():
            raise DataError(
                f"{path} is no federation's folder: it has no {AGREEMENT}; 'fedframe federation new' makes one."
            )
        return cls(path)

    @classmethod
    def create(
        cls, path: Path, agreement: Agreement, hosts: Sequence[str], weights: bytes | None = None
    ) -> FederationFolder:
        """Create a new folder, with all keys and kits."""
        from fedframe.network.certificates import make_certificates, make_node_key, write_secret

        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise SettingError(f"{path} is there already; choose a new folder.")
        target = path.absolute()
        folder = cls(target.with_name(f".{target.name}.part"))  # becomes the folder when it is complete
        shutil.rmtree(folder.path, ignore_errors=True)
        try:
            folder.path.mkdir(parents=True, mode=0o700)  # runs/ holds models and the scores of every member
            for private in (folder.keys, folder.state, folder.path / "kits"):
                private.mkdir(mode=0o700)
            make_certificates(folder.keys, hosts, agreement.name)
            write_secret(folder.keys / "organiser.secret", secrets.token_hex(32).encode())
            ca = (folder.keys / "ca.pem").read_bytes()
            for name in agreement.members:
                private = folder.keys / f"{name}.key"
                make_node_key(private, folder.keys / "nodes" / f"{name}.pub")
                Kit(name, agreement, ca, private.read_bytes(), weights).write(folder.kit(name))
                private.unlink()  # from here on only the kit has it
            if weights is not None:  # for kits that are made later
                kit_weights.install(folder.path, weights, agreement.settings)
            for command in ("serve", "start"):
                script = folder.path / f"{command}.sh"
                write_text(script, SCRIPT.format(command=command))
                script.chmod(0o755)
            folder._write_guide(agreement, path)
            agreement.write(folder.path / AGREEMENT)
            folder.path.replace(target)
        except OSError as error:
            raise SettingError(f"Cannot make {path} ({error.strerror}); choose another folder.") from error
        finally:
            shutil.rmtree(folder.path, ignore_errors=True)
        made = cls(path)
        made.audit.add(
            "made",
            federation=agreement.name,
            members=list(agreement.members),
            version=agreement.version,
            settings=settings_digest(agreement),
        )
        return made

    def kit(self, name: str) -> Path:
        """The archive of a member's kit, for as long as it is here."""
        return self.path / "kits" / f"{name}-kit.zip"

    def change(self, agreement: Agreement) -> None:
        """Replace the agreement by a new one, also in the guide and in kits that were not handed over."""
        for name in agreement.members:
            if self.kit(name).exists():
                replace(Kit.read(self.kit(name)), agreement=agreement).write(self.kit(name))
        self._write_guide(agreement, self.path)
        agreement.write(self.path / AGREEMENT)
        self.audit.add(
            "agreement changed",
            members=list(agreement.members),
            version=agreement.version,
            settings=settings_digest(agreement),
        )

    def agreement(self) -> Agreement:
        """What all members have agreed on."""
        path = self.path / AGREEMENT
        return Agreement.read(read_text(path), str(path))

    def weights(self, agreement: Agreement) -> bytes | None:
        """The file of initial weights that kits bring along, if they do."""
        path = self.path / kit_weights.file_name(agreement.settings)
        return path.read_bytes() if agreement.settings.weights is not None and path.exists() else None

    def public_keys(self) -> dict[str, bytes]:
        """The members' public keys by name."""
        return {path.stem: path.read_bytes() for path in sorted((self.keys / "nodes").glob("*.pub"))}

    def secret(self) -> str:
        """The organiser's secret."""
        return (self.keys / "organiser.secret").read_text().strip()

    def _write_guide(self, agreement: Agreement, shown: Path) -> None:
        if agreement.is_draft:
            text = DRAFT_GUIDE.format(
                name=agreement.name,
                members=", ".join(agreement.members),
                address=agreement.address,
                port=agreement.port,
                folder=shlex.quote(shown.as_posix()),
            )
            write_text(self.path / "GUIDE.md", text)
            return
        classes, form = agreement.form.outputs, agreement.form
        kind = "csv" if form.columns is not None else "imagefolder" if len(form.shape) == 3 else "npz"
        text = GUIDE.format(
            name=agreement.name,
            version=agreement.version,
            members=", ".join(agreement.members),
            address=agreement.address,
            port=agreement.port,
            folder=shlex.quote(shown.as_posix()),
            first=shlex.quote((shown / "runs" / "1").as_posix()),
            method=agreement.settings.method,
            rounds=agreement.settings.rounds,
            classes=len(classes),
            some=", ".join(classes[:5]) + (", ..." if len(classes) > 5 else ""),
            shape=" x ".join(map(str, agreement.form.shape)),
            data=f"{kind}:{'scans/' if kind == 'imagefolder' else f'own.{kind}'}",
            test=f"{kind}:{'public-test/' if kind == 'imagefolder' else f'public.{kind}'}",
        )
        write_text(self.path / "GUIDE.md", text)

    # -- running processes ---------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def exclusive(self, what: str, does: str) -> Iterator[None]:
        """Serve or train as the only process, and be found by `process` meanwhile.

        What counts is a lock, which the system releases when the process ends, however it does: the id in the file may
        be another process's by then, or even this one's.
        """
        path = self.state / f"{what}.pid"
        try:
            lock = lock_with_pid(path, LOCK_TIMEOUT)
        except Timeout as error:
            raise RunError(
                f"Process {read_pid(path)} {does} {self.path} already; stop it with 'fedframe federation stop'."
            ) from error
        try:
            yield
        finally:
            path.write_text("")
            lock.release()

    def process(self, what: str) -> int | None:
        """The id of the process that serves or trains, if there is one."""
        path = self.state / f"{what}.pid"
        if not path.exists():
            return None
        try:
            with FileLock(path, timeout=0):
                return None
        except Timeout:
            return read_pid(path)
