"""A method: parts put together, each hook called for the parts that override it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from torch import Tensor, nn

from fedframe.core.hook_errors import call_in_place, returned_tensor
from fedframe.core.layout import named_tensors
from fedframe.core.model import Model
from fedframe.core.part import Part, Slot, filled_slots, overrides
from fedframe.core.part_check import check_part, class_location
from fedframe.errors import SettingError, nearest

OPTIONAL: frozenset[Slot] = frozenset({"predict", "step", "load_personal", "server_stage"})


def parts_with(parts: Sequence[Part], hook: str) -> tuple[Part, ...]:
    """The parts that override a hook, in order."""
    return tuple(part for part in parts if overrides(type(part), hook))


@dataclass(frozen=True)
class Method:
    """Parts in the order in which they act, exactly one for each slot that is not optional."""

    name: str  # as it was typed
    parts: tuple[Part, ...]  # in the order in which they act
    defaults: frozenset[str] = frozenset()  # names of those that nobody chose: they fill the slots that were left

    def parts_with(self, hook: str) -> tuple[Part, ...]:
        """The parts that override a hook, in order."""
        return parts_with(self.parts, hook)

    def slot(self, slot: Slot) -> Part:
        """The part that fills a slot that is always filled."""
        part = self.optional_slot(slot)
        assert part is not None, f"no part fills {slot}"
        return part

    def optional_slot(self, slot: Slot) -> Part | None:
        """The part that fills a slot, if any does."""
        return next((part for part in self.parts if slot in filled_slots(type(part))), None)

    @property
    def shares_a_model(self) -> bool:
        """Whether the shared tensors alone make a model that predicts."""
        return all(part.shares_a_model for part in self.parts)

    def build(self, backbone: nn.Module, dim: int, classes: int) -> Model:
        """The model: backbone, the parts' modules in order, the classifier last."""
        model = Model(backbone, dim, classes)
        for part in self.parts_with("build"):
            call_in_place(part, "build", model)
        head = self.slot("head")
        call_in_place(head, "build_head", model)
        if isinstance(model.head, nn.Identity):
            raise SettingError(f"{class_location(type(head))}.build_head must set model.head, the classifier.")
        return model

    def private(self, model: Model) -> set[str]:
        """Names of the model's tensors that stay on the client."""
        found, known = set(), named_tensors(model)
        for part in self.parts_with("private"):
            for name in part.private(model):
                if name not in known:
                    where = f"{class_location(type(part))}.private"
                    raise SettingError(f"{where} names {name!r}, which the model lacks; {nearest(name, known)}")
                found.add(name)
        return found

    def embed(self, model: Model, inputs: Tensor) -> Tensor:
        """From inputs to what reaches the classifier, in prediction."""
        return self.refine(model, model(inputs))

    def refine(self, model: Model, features: Tensor) -> Tensor:
        """From the backbone's features to what reaches the classifier, in prediction."""
        for part in self.parts_with("transform"):
            features = part.transform(model, features, None)
        return features

    def logits(self, model: Model, inputs: Tensor) -> Tensor:
        """From inputs to class scores, in prediction."""
        return self.classify(model, self.embed(model, inputs))

    def classify(self, model: Model, features: Tensor) -> Tensor:
        """From what reaches the classifier to class scores, in prediction."""
        part = self.optional_slot("predict")
        if part is not None:
            return returned_tensor(part.predict(model, features), part, "predict")
        logits: Tensor = model.head(features)
        return logits

    def probabilities(self, model: Model, inputs: Tensor) -> Tensor:
        """From inputs to class probabilities: what class scores mean is up to the loss that they were learnt by."""
        return self.slot("loss").probabilities(self.logits(model, inputs))


def combine(
    name: str, parts: Sequence[Part], defaults: Sequence[Part], origins: Mapping[str, str] | None = None
) -> Method:
    """Put parts together and fill the slots that are left with the defaults.

    `origins` says from which recipe a part comes, for those that the user did not name.
    """
    holder: dict[str, Part] = {}
    # Two recipes may bring the very same part. By equality: a setting may hold a list, which has no hash.
    parts = without_replaced([part for place, part in enumerate(parts) if part not in parts[:place]])
    for part in parts:
        check_part(type(part))
        twin = next((other for other in parts if other.name == part.name and other != part), None)
        if twin is not None:
            if type(twin) is not type(part):
                kinds = " and ".join(f"{type(each).__module__}.{type(each).__qualname__}" for each in (part, twin))
                raise SettingError(
                    f"{name!r} brings two parts of the name {part.name!r}, of the classes {kinds}; give one of them "
                    f"another name, e.g. 'my_{part.name}'."
                )
            raise SettingError(f"{name!r} brings {part.name!r} twice with different settings: {part} and {twin}.")
        for slot in sorted(filled_slots(type(part))):
            if slot in holder:
                raise SettingError(clash(name, slot, [holder[slot].name, part.name], origins or {}))
            holder[slot] = part
    free = [part for part in defaults if not holder.keys() & filled_slots(type(part))]
    missing = set(get_args(Slot)) - OPTIONAL - holder.keys() - {s for p in free for s in filled_slots(type(p))}
    assert not missing, f"no default for {missing}"
    ordered = tuple(sorted((*free, *parts), key=lambda part: part.rank))
    return Method(name, ordered, frozenset(part.name for part in free))


def without_replaced(parts: Sequence[Part]) -> list[Part]:
    """The parts but for those that another replaces: one that fills no slot which is not taken over."""

    def replaced(part: Part) -> bool:
        taken = {slot for other in parts if other.name != part.name for slot in other.takes_over}
        slots = filled_slots(type(part))
        return bool(slots) and slots <= taken and not part.takes_over

    return [part for part in parts if not replaced(part)]


def clash(name: str, slot: str, names: Sequence[str], origins: Mapping[str, str]) -> str:
    """The sentence about two parts that fill one slot; who names a recipe need not know its parts."""
    first, second = (f"{part!r} (of {origins[part]})" if part in origins else repr(part) for part in names)
    recipe = next((origins[part] for part in names if part in origins), None)
    instead = f", and join the others instead of {recipe} (see 'fedframe show {recipe}')" if recipe else ""
    return f"{name!r} cannot be combined: {first} and {second} both claim the {slot} slot; leave one out{instead}."
