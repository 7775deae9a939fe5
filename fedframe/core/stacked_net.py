"""The nets of several clients as one: every linear layer holds the weights of all of them, (clients, out, in).

A step of a small net takes longer to start its operations than to compute them, so one operation for many clients saves
most of its time. Only nets that are a chain of linear layers and element-wise functions are taken: there a client's
numbers meet no other client's, and a matrix product of the stack is one matrix product per client.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedframe.core.layout import LINE, named_tensors
from fedframe.core.model import Model, load_tensors
from fedframe.core.stacked_heads import StackedLinear, batched_copy, stackable

if TYPE_CHECKING:
    from collections.abc import Collection

Step = str | Callable[[Tensor], Tensor]  # the path of a linear layer, or a function of (clients, samples, ...)

ELEMENTWISE = (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Softplus, nn.Identity)
FUNCTIONS = {torch.relu, F.relu, torch.tanh, F.tanh, torch.sigmoid, F.sigmoid, F.gelu, F.leaky_relu, F.elu, F.silu}
METHODS = {"relu", "relu_", "tanh", "tanh_", "sigmoid", "sigmoid_"}


# -- which nets can be stacked -----------------------------------------------------------------------------------------
def layer_chain(backbone: nn.Module) -> list[Step] | None:
    """The steps of a net that is a chain of linear layers and element-wise functions; None for any other net."""
    modules = list(backbone.modules())
    if any(each._forward_hooks or each._forward_pre_hooks or each._backward_hooks for each in modules):
        return None
    linear = {name for name, each in backbone.named_modules() if type(each) is nn.Linear}
    known = {f"{path}.{name}" for path in linear for name, _ in backbone.get_submodule(path).named_parameters()}
    if set(named_tensors(backbone)) - known or any(True for _ in backbone.buffers()):
        return None
    try:
        double = copy.deepcopy(backbone)
        graph, other = (fx.Tracer().trace(double.train(mode)) for mode in (True, False))
    except Exception:  # a net of the user's, whose way depends on its inputs
        return None
    if str(graph) != str(other):
        return None
    nodes = list(graph.nodes)
    steps: list[Step] = []
    for before, node in zip([None, *nodes], nodes, strict=False):
        if node.op == "placeholder" and before is None:
            continue
        if before is None or node.all_input_nodes != [before] or len(before.users) != 1 or node.args[0] is not before:
            return None
        if node.op == "output":
            return steps
        step = read_step(backbone, node)
        if step is None:
            return None
        steps.append(step)
    return None


def read_step(backbone: nn.Module, node: fx.Node) -> Step | None:
    """What one node of the chain does to a stack; None if that is not known."""
    rest, named = node.args[1:], dict(node.kwargs)
    if node.op == "call_module":
        module = backbone.get_submodule(str(node.target))
        if type(module) is nn.Linear:
            return str(node.target)
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            return flatten
        return module if type(module) in ELEMENTWISE else None
    if node.target in ("flatten", torch.flatten) and rest == (1,) and not named:
        return flatten
    if node.op == "call_function" and node.target in FUNCTIONS:
        function: Any = node.target
        return lambda x: function(x, *rest, **named)
    if (node.op, node.target, rest[:1], named) == ("call_method", "permute", (0,), {}):
        places = [1 + int(place) for place in rest[1:] if isinstance(place, int)]
        return lambda x: x.permute(0, 1, *places)
    if node.op == "call_method" and node.target in METHODS and not rest and not named:
        return operator.methodcaller(str(node.target))
    return None


def flatten(x: Tensor) -> Tensor:
    """Each sample as one vector."""
    return x.flatten(2)


# -- the stack ---------------------------------------------------------------------------------------------------------
class StackedProduct(torch.autograd.Function):
    """x W' + b for every client, with gradients that lie in memory as the weights do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(clients, samples, in) to (clients, samples, out)."""
        ctx.save_for_backward(x, weight)
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Torch's own gradient of `baddbmm` is that of the transposed weight, and has to be copied."""
        x, weight = ctx.saved_tensors
        gradient = gradients[0]
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if wants_x else None,
            torch.bmm(gradient.mT, x) if wants_weight else None,
            torch.bmm(gradient.new_ones(len(gradient), 1, gradient.shape[1]), gradient)[:, 0] if wants_bias else None,
        )


class TrainedLinear(StackedLinear):
    """A linear layer per client, made for training."""

    def forward(self, features: Tensor) -> Tensor:
        """(clients, samples, in) to (clients, samples, out)."""
        product: Tensor = StackedProduct.apply(features, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return product


def stacked_names(model: Model) -> list[str]:
    """Names of all tensors of which every client of a stack has its own."""
    return [f"backbone.{name}" for name in named_tensors(model.backbone)] + stackable(model)


class Leaves(NamedTuple):
    """The weights that are trained, as the net has them and as the optimiser takes them."""

    shaped: list[nn.Parameter]
    padded: list[nn.Parameter]  # (clients, numbers)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for leaf in self.shaped:
            leaf.grad = None

    @torch.no_grad()
    def pass_gradients(self) -> None:
        """Give the optimiser the gradients that the backward pass has left."""
        for leaf, whole in zip(self.shaped, self.padded, strict=True):
            if leaf.grad is None:
                whole.grad = None
            elif leaf.numel() == whole.numel():
                whole.grad = leaf.grad.reshape(whole.shape)
            else:
                whole.grad = torch.zeros_like(whole)
                whole.grad[:, : leaf[0].numel()] = leaf.grad.flatten(1)


class StackedNet:
    """Backbone, what parts add to it, and the classifier of several clients."""

    def __init__(self, model: Model, chain: Sequence[Step]) -> None:
        self.chain, self.names = chain, stacked_names(model)
        # Found once: looking through a model for every client would take as long as its steps in the stack.
        self._single = {name: tensor for name, tensor in named_tensors(model).items() if name in {*self.names}}
        self.model = Model(batched_copy(model.backbone, TrainedLinear), model.dim, model.classes)
        self.model.extras = nn.ModuleDict({n: batched_copy(each, TrainedLinear) for n, each in model.extras.items()})
        self.model.head = batched_copy(model.head, TrainedLinear)
        self.tensors: dict[str, Tensor] = {}
        self.padded: dict[str, Tensor] = {}  # the same memory as (clients, numbers)
        self.checked = False  # whether the losses of several clients were compared with those of each

    @torch.no_grad()
    def take(self) -> dict[str, Tensor]:
        """Copies of the single model's tensors, of which every client of a stack has its own."""
        return {name: self._single[name].detach().clone() for name in self.names}

    @torch.no_grad()
    def give_back(self, tensors: Mapping[str, Tensor]) -> None:
        """Write a client's tensors into the single model."""
        for name, value in tensors.items():
            self._single[name].copy_(value)

    def load(self, model: Model, clients: Sequence[Mapping[str, Tensor]]) -> None:
        """Stack the clients' tensors; the rest, which is the same for all, is the model's."""
        common = {name: tensor for name, tensor in named_tensors(model).items() if name not in self.names}
        load_tensors(self.model, {name: tensor for name, tensor in common.items() if tensor.is_floating_point()})
        for name in self.names:
            shape, size = clients[0][name].shape, clients[0][name].numel()
            # Every client's numbers begin on a line of their own: element-wise kernels then round alike for all.
            self.padded[name] = torch.zeros(len(clients), -(-size // LINE) * LINE)
            # One number per client multiplies (clients, samples, features).
            self.tensors[name] = self.padded[name][:, :size].view(len(clients), *(shape or (1, 1)))
            for place, own in enumerate(clients):
                self.tensors[name][place] = own[name]

    def first(self, count: int, trained: Collection[str]) -> Leaves:
        """Put the first `count` clients' tensors into the net; the trained ones as leaves on the same memory."""
        leaves = Leaves([], [])
        for name, tensor in self.tensors.items():
            value: Tensor = tensor[:count]
            if name in trained:
                value = nn.Parameter(value)
                leaves.shaped.append(value)
                leaves.padded.append(nn.Parameter(self.padded[name][:count]))
            path, _, attribute = name.rpartition(".")
            object.__setattr__(self.model.get_submodule(path), attribute, value)
        return leaves

    def features(self, inputs: Tensor) -> Tensor:
        """(clients, samples, ...) to (clients, samples, features)."""
        for step in self.chain:
            inputs = self.model.backbone.get_submodule(step)(inputs) if isinstance(step, str) else step(inputs)
        return inputs

    def client(self, number: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One client's tensors."""
        return {name: tensor[number].reshape(like[name].shape) for name, tensor in self.tensors.items()}
