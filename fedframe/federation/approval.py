"""A node's approval of its settings: a digest of all of them, asked for again whenever one of them changes.

What was approved is kept in the node's folder. Without `join --approve` the first agreement of a folder is approved by
the command that names kit and data, and every later change is refused: scripts go on as they did, and nothing changes
behind their back. Host and port are no part of the digest: they do not change what is done with the data, and whoever
answers there must hold the federation's certificate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedframe.errors import DataError, SettingError
from fedframe.federation.agreement import Agreement
from fedframe.federation.audit import AuditLog, canonical, digest_of
from fedframe.settings import Settings
from fedframe.util.durable import write_durably
from fedframe.util.files import json_bytes, read_json

APPROVED = "approved.json"  # in a node's folder
DIGEST_LENGTH = 32  # hexadecimal digits: 128 bits
POLICIES = ("ask", "any")
MAX_SHOWN = 8  # changed settings that a sentence names
NOT_TERMS = ("clients",)  # follows from the members
DATA, MEMBERS = "data", "members"
Terms = dict[str, Any]


def terms_of(agreement: Agreement) -> Terms:
    """All that a node approves, by name."""
    settings = agreement.settings.model_dump(mode="json")
    kept = {name: value for name, value in settings.items() if name not in NOT_TERMS and name != DATA}
    return {"federation": agreement.name, MEMBERS: list(agreement.members), DATA: agreement.describe_form(), **kept}


def settings_digest(agreement: Agreement) -> str:
    """A short text that is equal for two agreements if all their terms are.

    Settings that are at their defaults do not count, so that a newer Fedframe that has more of them gives the same.
    """
    terms = {name: value for name, value in terms_of(agreement).items() if not is_default(name, value)}
    return digest_of(canonical(terms))[:DIGEST_LENGTH]


def is_default(name: str, value: object) -> bool:
    """Whether a setting has the value that it has where nobody names it."""
    return name not in (DATA, MEMBERS) and value == DEFAULTS.get(name, _MISSING)


_MISSING = object()
DEFAULTS: dict[str, Any] = Settings().model_dump(mode="json")


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The terms that are others than before, each with both values."""
    found = []
    for name in sorted({*before, *after}):
        old, new = (each.get(name, DEFAULTS.get(name)) for each in (before, after))
        if old == new:
            continue
        if name == DATA:  # long, and printed by `join` in full
            parts = [key for key in {**(old or {}), **(new or {})} if (old or {}).get(key) != (new or {}).get(key)]
            found.append(f"data ({', '.join(parts)})")
        else:
            found.append(f"{name} is {shown(new)} (was {shown(old)})")
    return found


def shown(value: object) -> str:
    """A value in a sentence."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{text[:80]}..." if len(text) > 80 else text


def listed(texts: list[str]) -> str:
    """Changes as part of a sentence."""
    return ", ".join(texts[:MAX_SHOWN]) + (f", and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else "")


def check_policy(policy: str | None) -> str | None:
    """A value of `join --approve`."""
    if policy is None or policy in POLICIES:
        return policy
    text = policy.strip().lower()
    if len(text) != DIGEST_LENGTH or set(text) - set("0123456789abcdef"):
        raise SettingError(
            f"approve = {policy[:80]!r}: use ask, any, or the digest of {DIGEST_LENGTH} digits that 'fedframe "
            "federation join ... --check' prints."
        )
    return text


# -- what a node has approved ------------------------------------------------------------------------------------------
def approved_terms(folder: Path) -> Terms | None:
    """What the folder's people have approved last; of a folder that is older than approvals, its agreement."""
    if (folder / APPROVED).exists():
        found = read_json(folder / APPROVED).get("terms")
        if not isinstance(found, dict):
            raise DataError(f"{folder / APPROVED} is damaged; delete it, and approve the settings again (--approve).")
        return found
    path = folder / "federation.yaml"
    return terms_of(Agreement.read(path.read_text(errors="replace"), str(path))) if path.exists() else None


def approve(
    agreement: Agreement,
    folder: Path,
    policy: str | None,
    notify: Callable[[str], None],
    *,
    allowed: tuple[str, ...] = (),
    ask: Callable[[str], bool] | None = None,
) -> None:
    """Refuse settings that nobody here has approved, with one sentence; record approved ones.

    `allowed` are terms that may change without a question: members, if the person here has just named the file that
    changes them; data, if a survey that was answered here has settled them.
    """
    terms, before, digest = terms_of(agreement), approved_terms(folder), settings_digest(agreement)
    news = changes(before, terms) if before is not None else []
    log = AuditLog(folder)
    by = "as before"
    if policy not in (None, *POLICIES):
        if policy != digest:
            log.add("refused", settings=digest, changed=news, by=policy)
            differs = f" ({listed(news)})" if news else ""
            raise SettingError(
                f"The settings of {agreement.name} have the digest {digest}{differs}, and this node approves "
                f"{policy}; look at them, and join with --approve {digest}."
            )
        by = "the digest that was given"
    elif before is None or news:
        others = [name for name in sorted({*terms, *(before or {})}) if _changed(before or {}, terms, name)]
        if policy == "any":
            by = "any"
        elif policy == "ask":
            for line in describe_terms(agreement, news):
                notify(line)
            if not (ask or ask_person)(f"Take part in {agreement.name} with these settings ({digest})?"):
                log.add("refused", settings=digest, changed=news, by="ask")
                raise SettingError(
                    f"The settings of {agreement.name} (digest {digest}) were not approved here"
                    f"{f': {listed(news)}' if news else ''}; to approve them, join with --approve {digest}."
                )
            by = "the person asked"
        elif before is None:
            by = "the first agreement of this folder"
        elif set(others) <= set(allowed):
            by = "the file named by --agreement" if MEMBERS in others else "the survey that was answered here"
        else:
            log.add("refused", settings=digest, changed=news)
            raise SettingError(
                f"The settings of {agreement.name} are not those that this node has approved: {listed(news)}; look at "
                f"them, and join with --approve {digest} (their digest) to take part with them."
            )
    if before is None or news or not (folder / APPROVED).exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(folder / APPROVED, json_bytes({"digest": digest, "by": by, "terms": terms}))
        log.add("approved", federation=agreement.name, settings=digest, changed=news, by=by)
        if news:
            notify(f"Approved ({by}): {listed(news)}. Digest of the settings: {digest}.")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> bool:
    default = DEFAULTS.get(name)
    return bool(before.get(name, default) != after.get(name, default))


def describe_terms(agreement: Agreement, news: list[str]) -> list[str]:
    """What is approved: what has changed, or all that is not at its default."""
    if news:
        return ["Changed since this node approved them:", *(f"  {text}" for text in news)]
    found = [
        f"  {name}: {shown(value)}"
        for name, value in terms_of(agreement).items()
        if name != DATA and not is_default(name, value)
    ]
    return ["Settings that are agreed (all others are at their defaults):", *found]


def ask_person(question: str) -> bool:
    """Ask at the terminal; without a terminal the answer is no."""
    if not sys.stdin.isatty():
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
