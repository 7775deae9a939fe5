"""Which method to try on one's own data: facts about the data, and one table of rules that name candidates.

The rules say no more than the results in docs/results do: each names where its evidence stands, and how much it is. On
so few data sets that is a place to start a comparison from, not its outcome.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedframe.data import Federation
from fedframe.errors import DataError, SettingError
from fedframe.jobs.build import make_clients
from fedframe.methods.recipes import make_method, recipe_defaults
from fedframe.network.compatibility import check_summable
from fedframe.settings import Settings, check
from fedframe.util.text import plural

Wish = Literal["shared", "personal"]
Privacy = Literal["none", "secure", "noise"]

CANDIDATES = 3
ALIKE = 0.15  # mean distance of a client's label mix from everyone's, from 0 to 1: below it clients are alike
STRONG = 0.45  # above it most clients hold few of the classes
TAIL = 10.0  # samples of the most frequent class per sample of the rarest
FEW_SAMPLES = 50  # training samples per client, median
FEW_ROUNDS = 15
MANY_CLIENTS = 200  # from here on noise that hides whole clients leaves something to learn


@dataclass(frozen=True)
class Facts:
    """What the rules look at."""

    name: str
    kind: Literal["images", "vectors"]
    classes: int
    clients: int
    samples: int
    per_client: int  # training samples, median
    skew: float  # mean total variation distance of a client's label mix from everyone's
    tail: float  # most frequent class by rarest
    rounds: int = 30
    wish: Wish = "shared"
    privacy: Privacy = "none"
    new_clients: bool = False
    attackers: bool = False


@dataclass(frozen=True)
class Rule:
    """One reason for one method."""

    method: str
    when: str  # the condition, as a person would say it
    applies: Callable[[Facts], bool]
    reason: str
    evidence: str  # the figures behind it
    page: str  # where they stand, in docs/
    sure: Literal["fair", "thin", "none"]  # several seeds on this kind of data; one seed or one data set; not measured
    options: str = ""


@dataclass(frozen=True)
class Suggestion:
    """A method, why, and the command."""

    rule: Rule
    command: str


SURE: Mapping[str, str] = {
    "fair": "several seeds, but few and small data sets",
    "thin": "one seed or one data set: differences of this size can be chance",
    "none": "not measured here; it follows from how the method works",
}

# In order of urgency: what is asked for comes first, then what is special about the data, then what holds in general.
RULES: Sequence[Rule] = (
    Rule(
        "rfa", "some clients may send false updates", lambda f: f.attackers,
        "The geometric median of the updates bears a minority of false ones, also where data are uneven.",
        "attack by defence on digits, 20 clients, even and uneven data", "methods/robust.md", "thin",
    ),
    Rule(
        "trimmed_mean+nnm", "some clients may send false updates", lambda f: f.attackers,
        "Extremes of every weight are cut, after updates were mixed with their neighbours because data differ.",
        "attack by defence on digits, 20 clients, even and uneven data", "methods/robust.md", "thin",
    ),
    Rule(
        "norm_bound", "some clients may send false updates", lambda f: f.attackers,
        "No update may be longer than the median one. It costs little, and goes with other methods.",
        "attack by defence on digits, 20 clients, even and uneven data", "methods/robust.md", "thin",
    ),
    Rule(
        "analytic", "differential privacy is asked for", lambda f: f.privacy == "noise" and f.clients < MANY_CLIENTS,
        "One release with one epsilon, and no rounds that spend more. With so few clients it can hide single samples, "
        "not whole clients.",
        "Fashion-MNIST .8738 without noise, .8392 at epsilon 4.7, one run each", "methods/analytic.md", "thin",
        "--rounds 0 --privacy-clip 1 --privacy-noise 1 --weighting uniform --set analytic.protect=sample",
    ),
    Rule(
        "analytic", "differential privacy is asked for", lambda f: f.privacy == "noise" and f.clients >= MANY_CLIENTS,
        "One release with one epsilon that hides whole clients, and no rounds that spend more.",
        "measured on Fashion-MNIST for single samples only", "methods/analytic.md", "none",
        "--rounds 0 --privacy-clip 1 --privacy-noise 1 --weighting uniform",
    ),
    Rule(
        "fedavg", "differential privacy is asked for", lambda f: f.privacy == "noise",
        "Clipped updates with noise hide whole clients. It needs hundreds of clients, and each round spends privacy.",
        "the accounting is tested; no table of accuracy by epsilon", "security.md", "none",
        "--privacy-clip 1 --privacy-noise 1 --weighting uniform",
    ),
    Rule(
        "fedprox", "differential privacy is asked for", lambda f: f.privacy == "noise",
        "As FedAvg; its pull keeps updates short, so that less of them is clipped.",
        "no table of accuracy by epsilon", "security.md", "none",
        "--privacy-clip 1 --privacy-noise 1 --weighting uniform",
    ),
    Rule(
        "analytic", "few training samples per client", lambda f: f.per_client < FEW_SAMPLES,
        "It has no rounds and nothing to tune: sums over all clients give the classifier of the pooled data, whatever "
        "the split.",
        "digits .992, best of 17 rows over 5 seeds, personal .997", "results/bench/quick.md", "fair",
    ),
    Rule(
        "analytic", "clients join or leave later", lambda f: f.new_clients,
        "A client is added or taken out by its sums ('fedframe join', 'forget'), exactly and without training.",
        "the result equals a new fit, bit for bit", "methods/analytic.md", "fair",
    ),
    Rule(
        "analytic", "a long tail", lambda f: f.tail >= TAIL and f.kind == "images",
        "Its classifier corrects for rare classes in closed form, without rounds.",
        "Fashion-MNIST with a tail of 100: .8556, mean of 3 seeds", "methods/analytic.md", "thin",
        "--set analytic.tail=normalised",
    ),
    Rule(
        "fedloge", "a long tail, and personal models wanted", lambda f: f.tail >= TAIL and f.wish == "personal",
        "Frozen class vectors for the backbone and a private classifier, realigned at the end.",
        "Fashion-MNIST with a tail of 100: personal .917, Fed-RoD .916, FedAvg .900, one seed, no controls",
        "results/older.md", "thin", "--set sse_c.norm=3",
    ),
    Rule(
        "fedrod", "a long tail", lambda f: f.tail >= TAIL,
        "Its loss is balanced by label counts, and each client adds a classifier of its own.",
        "Fashion-MNIST with a tail of 100: .831, FedAvg .785, one seed, no controls", "results/older.md", "thin",
    ),
    Rule(
        "fedavg+balanced_ce", "a long tail", lambda f: f.tail >= TAIL,
        "FedAvg with a loss that is balanced by label counts: what Fed-RoD and FedETF have in common.",
        "a control in every scene of the bench; not measured with a tail yet", "results/protocol.md", "none",
    ),
    Rule(
        "analytic", "a classifier for tables or vectors", lambda f: f.kind == "vectors",
        "It has no rounds and nothing to tune, and equals a fit on the pooled data.",
        "breast cancer .9737, pooled logistic regression .9708, 5 sites, 3 seeds", "methods/analytic.md", "fair",
    ),
    Rule(
        "analytic", "personal models wanted", lambda f: f.wish == "personal" and f.skew >= ALIKE,
        "Each client shifts the shared closed form towards its own data; exact leave-one-out says how far.",
        "digits: personal .997, FedAvg .973, 5 seeds", "results/bench/quick.md", "fair",
    ),
    Rule(
        "local", "personal models wanted, many samples per client",
        lambda f: f.wish == "personal" and f.per_client >= 1000,
        "Clients with much data of few classes gain little from others: check before you set up a federation.",
        "Fashion-MNIST: alone .961, the best federated .971, one seed", "results/older.md", "thin",
    ),
    Rule(
        "fedavg", "personal models wanted", lambda f: f.wish == "personal",
        "The shared model, fine-tuned by each client: hard to beat.",
        "digits: .973, and no trained method is ahead beyond chance, 5 seeds", "results/bench/quick.md", "fair",
    ),
    Rule(
        "analytic", "skewed labels", lambda f: f.skew >= ALIKE,
        "It has no rounds and nothing to tune, and the split does not matter. Deep nets that are trained for long "
        "do better on photographs.",
        "digits .993 and Fashion-MNIST .901, 3 seeds; CIFAR-10 .725, one seed", "methods/analytic.md", "fair",
    ),
    Rule(
        "fedyogi", "few rounds", lambda f: f.rounds <= FEW_ROUNDS,
        "An adaptive step on the server speeds up the first rounds.",
        "digits after 10 rounds: .947, FedAvg .919, 3 seeds, no controls", "results/older.md", "thin",
    ),
    Rule(
        "fedadam", "few rounds", lambda f: f.rounds <= FEW_ROUNDS,
        "As FedYogi, with the older of the two rules.",
        "digits after 10 rounds: .942, FedAvg .919, 3 seeds, no controls", "results/older.md", "thin",
    ),
    Rule(
        "fedavg+ffc", "strongly skewed labels", lambda f: f.skew >= STRONG,
        "FedAvg with a least-squares classifier at the end: the part of SphereFed that gave most here.",
        "digits .983, FedAvg .959, 5 seeds", "results/bench/quick.md", "fair",
    ),
    Rule(
        "fedprox", "skewed labels, many rounds", lambda f: f.skew >= ALIKE,
        "A pull towards the shared model, with one setting and hardly any cost.",
        "Fashion-MNIST after 30 rounds .864, FedAvg .846, one seed, no controls; level with FedAvg on digits",
        "results/older.md", "thin",
    ),
    Rule(
        "fedrod", "skewed labels, many rounds", lambda f: f.skew >= ALIKE,
        "A loss balanced by label counts, and a classifier of its own per client.",
        "Fashion-MNIST after 20 rounds .858, FedAvg .826, one seed, nothing tuned, no controls", "results/older.md",
        "thin",
    ),
    Rule(
        "fedavg", "always", lambda f: True,
        "The baseline, with a falling learning rate: a gain that is easily taken for a method's.",
        "a tenth of Fashion-MNIST, 3 seeds: .787 with a constant rate, .816 with a cosine", "results/README.md", "fair",
        "--lr-schedule cosine",
    ),
    Rule(
        "analytic", "always", lambda f: True,
        "It takes seconds and tells how much rounds of training are worth on your data.",
        "digits, Fashion-MNIST, CIFAR-10, tables", "methods/analytic.md", "fair",
    ),
    Rule(
        "fedadam", "clients that are alike", lambda f: True,
        "Where clients are alike drift is small; an adaptive step on the server saves rounds.",
        "digits after 10 rounds: .942, FedAvg .919, 3 seeds, on skewed labels, no controls", "results/older.md", "thin",
    ),
)  # fmt: skip


def advise(facts: Facts, given: Mapping[str, Any]) -> list[Suggestion]:
    """The first candidates whose rules apply, each method once."""
    found: dict[str, Rule] = {}
    for rule in RULES:
        hidden = facts.privacy != "none" and not is_summable(rule.method)
        noisy = facts.privacy == "noise" and "--privacy-noise" not in rule.options
        if rule.applies(facts) and rule.method not in found and not hidden and not noisy:
            found[rule.method] = rule
    return [Suggestion(rule, command(rule, facts, given)) for rule in [*found.values()][:CANDIDATES]]


def is_summable(name: str) -> bool:
    """Whether a method works where the server sees sums only."""
    try:
        check_summable(make_method(name, {}))
    except SettingError:
        return False
    return True


def command(rule: Rule, facts: Facts, given: Mapping[str, Any]) -> str:
    """The command that tries a candidate on the data that were looked at."""
    words = ["fedframe", "run", rule.method]
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", shlex.quote(str(value))]
    without_rounds = recipe_defaults(rule.method).get("rounds") == 0
    if not without_rounds and facts.rounds != Settings.model_fields["rounds"].default:
        words += ["--rounds", str(facts.rounds)]
    secure = ["--engine flower --secure"] if facts.privacy == "secure" else []
    return " ".join([*words, *([rule.options] if rule.options else []), *secure])


def look(given: Mapping[str, Any], **asked: Any) -> Facts:
    """Load the data, deal them out as a run would, and look at them."""
    settings = check(dict(given))
    federation = make_clients(settings, settings.data)
    return facts_of(federation, **asked)


def facts_of(federation: Federation, **asked: Any) -> Facts:
    """What the rules look at, of a federation."""
    source = federation.source
    if getattr(source, "task", "classification") != "classification":
        raise DataError("fedframe advise knows classification only: there are no results for other tasks to go by.")
    sizes = federation.train.sizes().numpy()
    counts = federation.table(len(federation)).numpy().astype(float)
    totals = counts.sum(0)
    mixes = counts[sizes > 0] / counts[sizes > 0].sum(1, keepdims=True)
    distance = 0.5 * np.abs(mixes - totals / totals.sum()).sum(1)
    present = totals[totals > 0]
    return Facts(
        name=source.name,
        kind="images" if len(source.input_shape) > 1 else "vectors",
        classes=len(source.classes),
        clients=len(federation),
        samples=int(sizes.sum()),
        per_client=int(np.median(sizes)),
        skew=float(np.average(distance, weights=sizes[sizes > 0])),
        tail=float(present.max() / present.min()),
        **asked,
    )


def facts_lines(facts: Facts) -> list[str]:
    """The facts in plain words."""
    skew = "alike" if facts.skew < ALIKE else "strongly skewed" if facts.skew >= STRONG else "skewed"
    tail = f"a long tail (1 to {facts.tail:.0f})" if facts.tail >= TAIL else f"no long tail (1 to {facts.tail:.1f})"
    few = ", which is few" if facts.per_client < FEW_SAMPLES else ""
    wishes = [
        f"{plural(facts.rounds, 'round')}",
        f"a good {facts.wish} model",
        {"none": "", "secure": "sums only", "noise": "differential privacy"}[facts.privacy],
        "clients that come later" if facts.new_clients else "",
        "clients that may send false updates" if facts.attackers else "",
    ]
    return [
        f"{facts.name}: {facts.kind}, {plural(facts.classes, 'class', 'classes')}, "
        f"{facts.samples:,} training samples of {plural(facts.clients, 'client')}",
        f"samples per client: {facts.per_client:,} in the median{few}",
        f"labels: {skew} (distance {facts.skew:.2f} of 1 from everyone's mix), {tail}",
        f"asked for: {', '.join(filter(None, wishes))}",
    ]
