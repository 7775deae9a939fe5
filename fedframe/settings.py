"""Every setting of a run, its default, and its bounds; checked before any work starts."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedframe.errors import DataError, SettingError, nearest
from fedframe.util.plain_files import explained, read_bytes
from fedframe.util.schedule import Schedule

MOST = 1_000_000_000  # of whatever is counted: no run has more, and numbers beyond would not end
Share = Annotated[float, Field(gt=0, le=1)]
METRICS = (
    "accuracy",
    "balanced_accuracy",
    "auroc",
    "average_precision",
    "f1",
    "sensitivity",
    "specificity",
)  # what generic, client and personal scores can be; higher is better in all of them
NUMBER_METRICS = ("mae", "rmse", "r2")  # the same where numbers are predicted; lower is better in the first two
USUAL_METRICS = {"regression": "mae", "multilabel": "auroc"}  # what scores are unless asked for; else accuracy
MEASURES = ("collapse", "drift", "cka", "local")  # what can be measured in rounds
LOGGERS = ("tensorboard", "mlflow", "wandb")  # where a run can be logged to, beside its folder
FROM_PYTHON = "python"  # what config.yaml says of data or a net that was an object; of a method also what it looks like
TRUE = ("true", "yes", "on", "y", "t", "1", "1.0")  # what is read as true, in small letters
MOST_CONFIG, DEEPEST = 1 << 20, 100  # bytes of a config file, and brackets within brackets
BRACKET = re.compile(rb"[][{}]")
REMOTE_DATA = "none"  # the data of a federation's run: they stay at the nodes, and each knows its own


class Settings(BaseModel):
    """All settings of a run. The names are those of the command line and of the YAML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    method: str = Field("fedavg", description="method, or methods and parts joined with +")
    set: dict[str, dict[str, Any]] = Field(default_factory=dict, description="settings of the method's parts")

    data: str = Field("digits", description="data source, see 'fedframe list'")
    data_dir: str | None = Field(None, description="folder of the public data sets (or FEDFRAME_DATA)")
    label: str | None = Field(None, description="label column of tabular data; several: separated by commas")
    client_column: str | None = Field(None, description="client column of tabular data")
    task: Literal["auto", "classification", "regression", "multilabel"] = Field(
        "auto",
        description="what is learned: classification, regression (numbers) or multilabel (several labels a sample); "
        "auto: inferred from the labels",
    )
    partition: str = Field(
        "auto",
        description="how samples are distributed to clients (auto: user if the data name users, else dirichlet:0.1)",
    )
    clients: int | None = Field(None, ge=1, le=MOST, description="number of clients (default 20; all of them for user)")
    min_client_size: int = Field(10, ge=1, le=MOST, description="fewest samples a client may hold")
    test_share: float = Field(0.2, gt=0, lt=1, description="test share of sources that have no test set")
    validate_share: float = Field(0.0, ge=0, lt=1, description="score on this share of every client's training data")
    data_share: Share = Field(1.0, description="share of the training samples that is kept, equal for every class")
    local_test: Annotated[float, Field(ge=0, lt=1)] | Literal["global"] = Field(
        0.25, description="each client's test data: a held-out share, or 'global' = drawn from the test set"
    )
    new_clients: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="clients kept out of the training and scored at its end: a share of all, or a number",
    )
    augment: str = Field("none", description="none, flip, crop or crop+flip")

    model: str = Field("auto", description="net, or my_file.py:MyNet")
    weights: str | None = Field(None, description="file of the net's initial weights: .safetensors, .pt or .pth")
    weights_digest: str | None = Field(None, description="digest of that file; recorded by the first run")
    freeze: str = Field(
        "none", description="part of the net that is not trained: none, backbone, or its first N children"
    )
    lora: int = Field(
        0,
        ge=0,
        le=4096,
        description="rank of low-rank adapters, which are trained and sent instead of the net's weights (0: none)",
    )
    lora_layers: str = Field(
        "auto", description="layers with adapters: auto (the linear ones, else convolutions), or names: q_proj,v_proj"
    )
    lora_alpha: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="scale of the adapters times their rank (default: twice the rank)"
    )

    rounds: int = Field(30, ge=0, le=MOST, description="communication rounds (0: only what comes after them)")
    participation: Share = Field(1.0, description="share of the clients that take part in a round")
    epochs: int = Field(2, ge=1, le=MOST, description="local epochs per round")
    steps: int | None = Field(None, ge=1, le=MOST, description="local steps per round, instead of epochs")
    batch: int = Field(32, ge=1, le=MOST, description="local batch size")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="local optimiser: sgd, adam or adamw")
    lr: float = Field(
        0.1, gt=0, allow_inf_nan=False, description="local learning rate (default 0.001 for adam and adamw)"
    )
    lr_per_class: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="instead of lr: local learning rate per class of the data"
    )
    lr_schedule: str = Field("constant", description="constant, cosine, exponential:0.99 or step:0.1@0.5,0.75")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    nesterov: bool = Field(False, description="Nesterov momentum")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")
    clip: float | None = Field(None, gt=0, description="largest norm of a local gradient")
    keep_optimizer: bool = Field(False, description="keep optimiser state on the client between rounds")
    class_weights: str = Field(
        "none", description="weight of a class's samples in the loss: none, balanced, or 'healthy=1,sick=9'"
    )
    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weight of a client in the mean: samples or uniform"
    )
    buffers: Literal["average", "private", "fixed"] = Field(
        "average", description="BatchNorm statistics: average, private or fixed"
    )
    samples_bound: float = Field(
        10.0,
        ge=0,
        allow_inf_nan=False,
        description="largest weight of a client, in multiples of the median number of samples of a round (0: no bound)",
    )
    step_bound: float = Field(
        30.0,
        ge=0,
        allow_inf_nan=False,
        description="over a network: a node refuses a model that has moved this many times as far in a round as its "
        "own updates suggest (0: no bound)",
    )
    update_bound: float = Field(
        100.0,
        ge=0,
        allow_inf_nan=False,
        description="updates longer than this multiple of the median norm are dropped (0: no bound)",
    )

    privacy_clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="client-level privacy: largest norm of a client's update"
    )
    privacy_noise: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="client-level privacy: noise of the sum, in units of privacy_clip"
    )
    privacy_delta: float = Field(
        1e-5, gt=0, lt=1, description="client-level privacy: delta for which epsilon is reported"
    )
    privacy_at: Literal["server", "node"] = Field(
        "server", description="client-level privacy: who adds the noise: the server, or each client"
    )

    eval_every: int = Field(1, ge=0, le=MOST, description="evaluate every N rounds (0: only after the last)")
    eval_batch: int = Field(256, ge=1, le=MOST, description="batch size of evaluation")
    eval_clients: int = Field(200, ge=1, le=MOST, description="most clients scored between rounds (all after the last)")
    personal: bool = Field(True, description="make and score a personal model per client after the last round")
    personal_clients: int = Field(
        1000, ge=1, le=MOST, description="most clients that get a personal model (a fixed draw)"
    )
    save_personal: bool = Field(True, description="keep the personal models in the run folder")
    metric: str = Field(
        "auto",
        description="measure that scores report: accuracy, balanced_accuracy, auroc, average_precision, f1, "
        "sensitivity, specificity; of numbers mae, rmse or r2 (auto: accuracy, or balanced_accuracy where one class "
        "has more than 80 % of the test data; mae of numbers, auroc of several labels)",
    )
    metric_at: Share = Field(0.9, description="specificity at which sensitivity is reported, and the other way round")
    positive: str | None = Field(
        None,
        description="of two classes, the one that auroc, sensitivity and similar measures count as positive "
        "(default: the second)",
    )
    score_bins: int = Field(
        2048, ge=0, le=1 << 16, description="over a network: bins of the nodes' score histograms (0: send none)"
    )
    measure: str = Field("", description="measure in rounds: collapse, drift, cka, local (separated by commas) or all")

    seed: int = Field(0, ge=0, lt=1 << 63, description="fixes the split, the initial model and every batch")
    engine: Literal["local", "flower", "flower-sim"] = Field(
        "local",
        description="who runs the clients: local, flower (node processes over TLS) or flower-sim (Ray)",
    )
    nodes: int = Field(3, ge=1, le=MOST, description="node processes of the engine flower, or nodes of flower-sim")
    min_clients: Annotated[int, Field(ge=1, le=MOST)] | Literal["all"] | None = Field(
        None,
        description="over a network: fewest replies of a round, or all (default: half of those asked, at least 2; with "
        "secure: all)",
    )
    patience: float | None = Field(
        None, gt=0, description="over a network: seconds to wait for a reply (default: while the node is connected)"
    )
    secure: bool = Field(False, description="over a network: the organiser gets sums over clients, not single updates")
    workers: int | None = Field(
        None, ge=1, le=MOST, description="worker processes (default: one per core; 1: this process)"
    )
    device: str = Field(
        "cpu", description="cpu, cuda, cuda:1, several as cuda:0,cuda:1, mps, or auto: the best one available"
    )
    precision: Literal["float32", "bf16", "fp16"] = Field(
        "float32",
        description="precision of the net's arithmetic: float32, bf16 or, on a GPU, fp16; weights stay float32",
    )
    vectorise: Literal["auto", "off"] = Field(
        "off", description="auto: clients with small nets of linear layers train together, where the method allows it"
    )
    log: str = Field("", description="also log to tensorboard, mlflow or wandb (several: separated by commas)")

    @model_validator(mode="before")
    @classmethod
    def _rate_suits_the_optimizer(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("optimizer") in ("adam", "adamw"):
            values = {"lr": 0.001, **values}
        return values

    @model_validator(mode="before")
    @classmethod
    def _secure_sums_have_everybody(cls, values: dict[str, Any]) -> dict[str, Any]:
        # Settings of earlier versions name every setting: where their min_clients is null it means what it meant then.
        if "min_clients" not in values and str(values.get("secure")).lower() in TRUE:
            return {**values, "min_clients": "all"}
        return values

    @model_validator(mode="after")
    def _momentum_is_used(self) -> Self:
        if self.optimizer != "sgd" and (self.momentum or self.nesterov):
            raise SettingError(f"momentum and nesterov are settings of sgd; leave them out with {self.optimizer}.")
        if self.nesterov and not self.momentum:
            raise SettingError("nesterov needs momentum; add momentum = 0.9.")
        return self

    @model_validator(mode="after")
    def _adapters_are_asked_for(self) -> Self:
        if self.lora and self.freeze != "none":
            raise SettingError("lora freezes all of the net but its adapters by itself; leave freeze out.")
        if not self.lora and (self.lora_layers != "auto" or self.lora_alpha is not None):
            raise SettingError("lora_layers and lora_alpha are about adapters, of which there are none; add lora = 8.")
        return self

    @field_validator("samples_bound", "update_bound")
    @classmethod
    def _bounds_leave_the_median(cls, value: float, info: ValidationInfo) -> float:
        if 0 < value < 1:
            raise SettingError(f"{info.field_name} = {value:g} would cut off the median itself; use 1 or more, or 0.")
        return value

    @field_validator("new_clients")
    @classmethod
    def _new_clients_are_whole(cls, value: float) -> float:
        if value >= 1 and value != int(value):
            raise SettingError(
                f"new_clients = {value:g} is neither a share below 1 nor a whole number; use 0.2 or {int(value)}."
            )
        return value

    @field_validator("measure")
    @classmethod
    def _measures_are_known(cls, text: str) -> str:
        for name in filter(None, (name.strip() for name in text.split(","))):
            if name not in (*MEASURES, "all"):
                raise SettingError(f"measure = {text!r}: {nearest(name, (*MEASURES, 'all'))}")
        return text

    @field_validator("metric")
    @classmethod
    def _metric_is_known(cls, name: str) -> str:
        if name == "brier":
            raise SettingError("metric = 'brier': it is better when lower, and stands beside every score; use auroc.")
        known = (*METRICS, *NUMBER_METRICS, "auto")
        if name not in known:
            raise SettingError(f"metric = {name!r}: {nearest(name, known)}")
        return name

    @field_validator("class_weights")
    @classmethod
    def _weights_can_be_read(cls, text: str) -> str:
        read_class_weights(text)
        return text

    @property
    def score_metric(self) -> str:
        """What scores are; where labels are unknown, and in runs of earlier versions, accuracy."""
        return USUAL_METRICS.get(self.task, "accuracy") if self.metric == "auto" else self.metric

    @property
    def measures(self) -> tuple[str, ...]:
        """What is measured in rounds."""
        asked = {name.strip() for name in self.measure.split(",")}
        return tuple(name for name in MEASURES if name in asked or "all" in asked)

    @field_validator("log")
    @classmethod
    def _loggers_are_known(cls, text: str) -> str:
        return ",".join(logger_names(text))

    @field_validator("lr_schedule")
    @classmethod
    def _schedule_is_known(cls, text: str) -> str:
        Schedule.read(text)
        return text


# The panels of `fedframe run --help`, each by its first setting: the fields above are in their order.
STARTS = {
    "Data": "data",
    "Training": "model",
    "Privacy": "privacy_clip",
    "Scores": "eval_every",
    "Machine": "seed",
}


def make_panels() -> dict[str, tuple[str, ...]]:
    """The settings of every panel."""
    names = list(Settings.model_fields)
    starts = [names.index(first) for first in STARTS.values()]
    ends = [*starts[1:], len(names)]
    return {panel: tuple(names[a:b]) for panel, a, b in zip(STARTS, starts, ends, strict=True)}


PANELS = make_panels()


def read_class_weights(text: str) -> dict[str, float] | str:
    """`none`, `balanced`, or the given weight of every class by its name."""
    if text in ("none", "balanced"):
        return text
    found: dict[str, float] = {}
    for pair in text.split(","):
        name, equals, value = pair.rpartition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not (equals and name.strip() and 0 < found[name.strip()] < float("inf")):
            raise SettingError(
                f"class_weights = {text!r} cannot be read at {pair.strip()!r}; use balanced, or a weight above 0 for "
                "every class: 'healthy=1,sick=9'."
            )
    return found


def logger_names(text: str) -> list[str]:
    """`tensorboard,mlflow` as names, each known and none twice."""
    names = [name for name in (piece.strip() for piece in text.split(",")) if name]
    for name in names:
        if name not in LOGGERS:
            raise SettingError(f"log = {text!r}: there is no logger {name!r}; {nearest(name, LOGGERS)}")
    return [*dict.fromkeys(names)]


def check(values: dict[str, Any]) -> Settings:
    """Settings from plain values; an error is one sentence that names the setting."""
    for name in values:
        if name not in Settings.model_fields:
            raise SettingError(f"There is no setting {name!r}; {nearest(str(name), Settings.model_fields)}")
    try:
        return Settings(**values)
    except ValidationError as error:
        # A setting of several types reports once per type: the first says enough.
        problems = {problem["loc"][0]: dict(problem) for problem in reversed(error.errors())}
        raise SettingError(" ".join(map(_sentence, problems.values()))) from error


def _sentence(problem: dict[str, Any]) -> str:
    name = str(problem["loc"][0])
    reason = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    hint = f"the default is {default}" if default is not None else "leave it out for the default"
    meaning = Settings.model_fields[name].description
    return f"{name} = {shown(problem['input'])}: {reason}; {hint} ({meaning})."


def shown(value: object) -> str:
    """A value for a sentence: short, however large it is."""
    try:
        return reprlib.repr(value) if isinstance(value, dict | list | tuple | set) else repr(value)[:200]
    except ValueError:  # a whole number of many thousand digits
        return "a huge number"


def merge_settings(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run, the later layer winning name by name; `lr` and `lr_per_class` take each other's place.

    In a layer that has both, as dumped settings do, `lr_per_class` is what counts.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, other in (("lr", "lr_per_class"), ("lr_per_class", "lr")):
            if layer.get(name) is not None:
                merged.pop(other, None)
        if layer.get("secure") and not merged.get("secure") and merged.get("min_clients") is None:
            merged.pop("min_clients", None)  # nobody has chosen how many are in a secure sum
        merged |= layer
    return merged


def short_method(name: str) -> str:
    """A method's name without where the user's own pieces are: `fedavg+MyPart` for `fedavg+some/file.py:MyPart`."""
    pieces = [piece.strip() for piece in name.split("+")]
    python = f"{FROM_PYTHON}:"
    return "+".join(
        piece.removeprefix(python) if piece.startswith(python) else piece.rpartition(":")[2].strip() for piece in pieces
    )


def from_python(values: Mapping[str, Any]) -> list[str]:
    """Which of a run's method, data and model were objects and not names."""
    pieces = [piece.strip() for piece in str(values.get("method") or "").split("+")]
    found = ["method"] if any(piece.startswith(f"{FROM_PYTHON}:") for piece in pieces) else []
    return found + [name for name in ("data", "model") if values.get(name) == FROM_PYTHON]


def merge_part_settings(*layers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings of parts, the later layer winning name by name."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        if not isinstance(layer, Mapping) or not all(isinstance(values, Mapping) for values in layer.values()):
            raise SettingError(f"set = {layer!r} cannot be read; write set: {{fine_tune: {{epochs: 3}}}}.")
        for part, values in layer.items():
            merged[part] = {**merged.get(part, {}), **values}
    return merged


def depth(content: bytes) -> int:
    """How deep brackets are nested, also those in texts."""
    found = accumulate(1 if bracket.group() in b"[{" else -1 for bracket in BRACKET.finditer(content))
    return max(found, default=0)


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a YAML file, not yet checked."""
    if not path.exists():
        raise SettingError(f"There is no config file {path}.")
    try:
        content = read_bytes(path)
    except DataError as error:
        raise SettingError(f"The config file cannot be read: {error}") from error
    return parse_config(content, path)


def parse_config(content: bytes, path: Path) -> dict[str, Any]:
    """The settings in the bytes of a YAML file, not yet checked."""
    if len(content) > MOST_CONFIG or depth(content) > DEEPEST:  # YAML would take minutes to say so
        raise SettingError(f"The config file {path} cannot be read: it is too large or nested too deeply for settings.")
    try:
        values = yaml.safe_load(content.decode())
    except UnicodeDecodeError as error:
        raise SettingError(
            f"The config file {path} cannot be read: byte {error.start} is not UTF-8 text; save it as UTF-8."
        ) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SettingError(f"The config file {path} cannot be read: line {line}: {error.problem}.") from error
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
        OverflowError,
    ) as error:  # absurd numbers and dates, deep nesting
        raise SettingError(f"The config file {path} cannot be read: {explained(error)}.") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingError(f"The config file {path} must hold lines such as 'rounds: 50'.")
    return values


def data_text(name: str) -> str:
    """What data are called; those of a federation have no name."""
    return "the nodes' data" if name == REMOTE_DATA else name


def data_name(name: str) -> str:
    """The same for readers elsewhere: without the folder, and without how a table's columns are read."""
    return data_text(Path(name.partition("?")[0]).name)
