"""Feature maps that nobody trains: random layers, whose scale is fixed or comes from sums over all clients' samples.

A map's random directions come from the seed. What else it needs to know of the data (a mean, a covariance) is a model
that holds for data of this kind (`Knows` "fixed": the map knows nothing of any client), or it is taken from *sums* over
samples ("data"), which clients can add up: `sums` of every batch, added over all clients, go into `fit`. All of a map's
tensors are parameters that never train, and they have the same names and shapes in both cases.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

Knows = Literal["fixed", "data"]  # what a map knows of the data: nothing but their kind, or sums over all samples
DEAD = 1e-6  # a deviation below this share of an input's size is none


def fixed(tensor: Tensor) -> nn.Parameter:
    """A tensor of a model that never trains; unlike a buffer it is not averaged either."""
    return nn.Parameter(tensor, requires_grad=False)


class FeatureMap(nn.Module):
    """The identity: features as they are, which needs no sums."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim  # of what comes out

    @property
    def sums_size(self) -> int:
        """How many sums `fit` needs."""
        return 0

    def sums(self, inputs: Tensor) -> Tensor:
        """Sums over a batch, in float64 and as one vector."""
        return torch.zeros(0, dtype=torch.float64)

    def fit(self, sums: Tensor) -> dict[str, Tensor]:
        """From the sums over all samples to the map's tensors, by name.

        One machine does it for all, also for a fixed map, which has no sums: rounding differs between machines.
        """
        return {}

    def usual(self) -> Tensor:
        """About where features lie, without a look at data; 0 where nothing is known."""
        return torch.zeros(self.dim)

    def forward(self, inputs: Tensor) -> Tensor:
        """(batch, inputs) to (batch, dim)."""
        return inputs


class RandomReLU(FeatureMap):
    """relu(A x + b) with x the standardised inputs, rows of A of expected length 1, and b standard normal.

    The inputs themselves stand beside the units, so that whatever is linear in them stays easy to fit. A fixed map
    takes the inputs as they are: the run has normalised them. With `samplewise`, for a net's features, which nobody has
    normalised, the units see each sample's minus their mean and divided by their deviation.
    """

    EPS = 1e-6  # of the largest value: below, a sample's features do not differ

    def __init__(self, inputs: int, units: int, knows: Knows = "data", samplewise: bool = False) -> None:
        super().__init__(inputs + units)
        self.inputs, self.knows, self.samplewise = inputs, knows, samplewise and knows == "fixed"
        self.directions = fixed(torch.randn(units, inputs) / math.sqrt(inputs))
        self.offsets = fixed(torch.randn(units))
        self.mean, self.inverse = fixed(torch.zeros(inputs)), fixed(torch.ones(inputs))

    @property
    def sums_size(self) -> int:
        """Sums, sums of squares, and the number of samples."""
        return 2 * self.inputs + 1 if self.knows == "data" else 0

    def sums(self, inputs: Tensor) -> Tensor:
        """Sums over a batch."""
        if self.knows == "fixed":
            return super().sums(inputs)
        wide = inputs.double()
        return torch.cat([wide.sum(0), wide.square().sum(0), wide.new_tensor([len(wide)])]).cpu()

    def fit(self, sums: Tensor) -> dict[str, Tensor]:
        """Mean and inverse deviation of every input; 0 for one that never changes."""
        if self.knows == "fixed":
            return {}
        count = sums[-1].clamp_min(1)
        mean, square = sums[: self.inputs] / count, sums[self.inputs : -1] / count
        variance = square - mean.square()
        changes = variance > DEAD**2 * square
        inverse = torch.where(changes, variance.clamp_min(1e-300).rsqrt(), 0.0)
        return {"mean": mean.float(), "inverse": inverse.float()}

    def forward(self, inputs: Tensor) -> Tensor:
        """Standardised inputs, and the units."""
        x = (inputs - self.mean) * self.inverse
        seen = self.normalised(x) if self.samplewise else x
        return torch.cat([x, torch.addmm(self.offsets, seen, self.directions.T).relu_()], 1)

    def usual(self) -> Tensor:
        """Means for inputs that are standard normal, 0 for the inputs themselves."""
        units = expected_relu(self.offsets, self.directions.norm(dim=1))
        return torch.cat([torch.zeros(self.inputs), units])

    def normalised(self, inputs: Tensor) -> Tensor:
        """Every sample's values minus their mean, divided by their deviation."""
        apart = inputs - inputs.mean(1, keepdim=True)
        deviation = apart.square().mean(1, keepdim=True).sqrt()
        return apart / (deviation + self.EPS * inputs.abs().amax(1, keepdim=True)).clamp_min(1e-30)


class WhitenedPatches(FeatureMap):
    """Random filters on whitened patches of an image, two-sided ReLU, average pooling, square root.

    Coates, Ng, Lee (An Analysis of Single-Layer Networks in Unsupervised Feature Learning, AISTATS 2011) with random
    directions instead of k-means. A patch of k x k pixels loses its mean and is divided by its deviation plus
    `EPS`; with m and S the mean and covariance of such patches q over all clients, P = (S + `WHITENING` I)^-1/2, and
    random unit rows f:
        y = f P (q - m),   features: sqrt of the means over a cell of max(y - t, 0) and max(-y - t, 0).
    The square root evens out what pooling makes of rare, strong answers (as for Fisher vectors: Perronnin et al. 2010).

    Filters are one matrix product over patches, a few images at a time: what lies between pixels and pooled features
    stays in the processor's cache. It is done in bfloat16 where the processor has units for it.

    A fixed map has m = 0 and a model of S: `natural_covariance`.
    """

    EPS = 0.15  # inputs have deviation 1
    WHITENING = 0.4
    THRESHOLD = 0.3
    CACHE = 4 << 20  # bytes of answers at once

    pooling: Tensor  # (cells, places)

    def __init__(
        self, shape: tuple[int, int, int], filters: int, patch: int, cells: int, knows: Knows = "data"
    ) -> None:
        super().__init__(2 * filters * cells**2)
        self.shape, self.patch, self.knows = shape, patch, knows
        channels, height, width = shape
        self.length = patch * patch * channels
        self.places = (height - patch + 1, width - patch + 1)
        directions = torch.randn(filters, self.length)
        self.directions = fixed(directions / directions.norm(dim=1, keepdim=True))
        self.weight = fixed(torch.zeros(self.length + 1, filters))  # the last row is the bias
        self.register_buffer("pooling", pooling_matrix(*self.places, cells), persistent=False)

    @property
    def sums_size(self) -> int:
        """Sum of q q', sum of q, and the number of patches."""
        return self.length**2 + self.length + 1 if self.knows == "data" else 0

    def sums(self, inputs: Tensor) -> Tensor:
        """Sums over a grid of about 14 x 14 places of every image: neighbouring patches add almost no information."""
        if self.knows == "fixed":
            return super().sums(inputs)
        step = max(1, min(self.places) // 14)
        found = torch.zeros(self.sums_size, dtype=torch.float64)
        for images in inputs.split(16):  # type: ignore[no-untyped-call]
            q = self.patches(images, step=step).flatten(0, 1)[:, :-1]
            found[: self.length**2] += (q.T @ q).flatten().double().cpu()
            found[self.length**2 : -1] += q.sum(0, dtype=torch.float64).cpu()
            found[-1] += len(q)
        return found

    def fit(self, sums: Tensor) -> dict[str, Tensor]:
        """The filters on patches as they are, with the whitening in them."""
        if self.knows == "fixed":
            nothing = torch.zeros(self.length, dtype=torch.float64)
            return {"weight": self.whitened(nothing, natural_covariance(self.patch, self.shape[0]))}
        count = sums[-1].clamp_min(1)
        mean = sums[self.length**2 : -1] / count
        covariance = sums[: self.length**2].reshape(self.length, self.length) / count - torch.outer(mean, mean)
        return {"weight": self.whitened(mean, covariance)}

    def usual(self) -> Tensor:
        """Roots of the expected answers to normal patches of the covariance that a fixed map assumes."""
        covariance = natural_covariance(self.patch, self.shape[0])
        filters = self.whitened(torch.zeros(self.length, dtype=torch.float64), covariance)[:-1].double()
        spread = (filters * (covariance @ filters)).sum(0).sqrt()
        pooled = expected_relu(torch.full_like(spread, -self.THRESHOLD), spread).sqrt().float()
        return pooled.repeat(2 * len(self.pooling))  # of both signs, cell by cell, the filters of a cell in a row

    def whitened(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """Rows of the filters f P, and -f P m as the last row."""
        values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        whitening = (vectors * (values.clamp_min(0) + self.WHITENING).rsqrt()) @ vectors.T
        filters = self.directions.double().cpu() @ whitening
        return torch.cat([filters, -(filters @ mean)[:, None]], 1).T.float().contiguous()

    def patches(self, images: Tensor, kind: torch.dtype = torch.float32, step: int = 1) -> Tensor:
        """(batch, places, length + 1): patches without their mean, divided by their deviation, and a constant 1."""
        channels, height, width = self.shape
        k, row = self.patch, width * channels
        images = images.contiguous()  # (batch, height * width * channels), channels last
        pixels = images.view(-1, 1, height, width, channels)
        boxes = [nn.functional.avg_pool2d(each.mean(-1), k, step) for each in (pixels, pixels.square())]
        mean, square = (box.view(len(images), -1, 1, 1) for box in boxes)
        scale = 1 / ((square - mean.square()).clamp_min_(0).sqrt_() + self.EPS)
        places = [-(-count // step) for count in self.places]
        strides = (height * row, step * row, step * channels, row, 1)
        q = images.as_strided((len(images), *places, k, k * channels), strides).reshape(*mean.shape[:2], k, -1)
        found = torch.empty(*mean.shape[:2], self.length + 1, dtype=kind, device=images.device)
        torch.mul(q.sub_(mean), scale, out=found[..., :-1].unflatten(-1, (k, -1)))  # type: ignore[no-untyped-call]
        found[..., -1] = 1
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        """Images as rows of values, channels last, to pooled answers."""
        if not len(inputs):
            return inputs.new_empty(0, self.dim)
        kind = torch.bfloat16 if inputs.device.type != "cpu" or has_bfloat16_units() else torch.float32
        weight, pooling = self.weight.to(kind), self.pooling.to(kind)
        block = max(1, self.CACHE // (math.prod(self.places) * weight.shape[1] * kind.itemsize))
        found = []
        for images in inputs.split(min(block, 16)):  # type: ignore[no-untyped-call]
            answers = nn.functional.softshrink(self.patches(images, kind) @ weight, self.THRESHOLD)
            above = pooling @ answers.clamp_min(0)
            below = pooling @ answers.clamp_max_(0)
            found.append(torch.cat([above, below], 1).float().abs_().sqrt_().flatten(1))
        return torch.cat(found)


def expected_relu(mean: Tensor, deviation: Tensor) -> Tensor:
    """E max(y, 0) for normal y."""
    ratio = mean / deviation.clamp_min(1e-30)
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    expected: Tensor = mean * torch.special.ndtr(ratio) + deviation * density
    return expected


NEIGHBOURS = 0.85  # correlation of neighbouring pixels; these three fit the patches of CIFAR-10's training images best
CHANNELS = 0.8  # correlation of two colours of a pixel
CONTRAST = 0.5  # variance of a patch's pixels once it is divided by its deviation plus `EPS`; flat patches have none


def natural_covariance(patch: int, channels: int) -> Tensor:
    """Covariance of normalised patches, as a model: nobody's data are in it.

    Pixels of natural images correlate with `NEIGHBOURS` to the power of their distance in rows plus that in columns
    (the separable Markov model of image coding), colours of a pixel with `CHANNELS`. Patches lose their mean, which
    centres rows and columns of the covariance, and have the variance `CONTRAST`. Order: rows, columns, channels.
    """
    places = torch.arange(patch, dtype=torch.float64)
    along = NEIGHBOURS ** (places[:, None] - places).abs()
    colours = torch.full((channels, channels), CHANNELS, dtype=torch.float64).fill_diagonal_(1.0)
    whole = torch.kron(torch.kron(along, along), colours)
    centred = whole - whole.mean(0) - whole.mean(1, keepdim=True) + whole.mean()
    return centred * (CONTRAST * len(whole) / centred.trace())


def pooling_matrix(height: int, width: int, cells: int) -> Tensor:
    """(cells^2, height * width): means over cells that cover the places evenly and overlap by at most one."""
    matrix = torch.zeros(cells, cells, height, width)
    for i in range(cells):
        for j in range(cells):
            rows = slice(i * height // cells, -(-(i + 1) * height // cells))
            columns = slice(j * width // cells, -(-(j + 1) * width // cells))
            matrix[i, j, rows, columns] = 1
    return (matrix / matrix.sum((2, 3), keepdim=True)).reshape(cells**2, height * width)


def has_bfloat16_units() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32."""
    found = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(found is not None and found())


class Raw(nn.Module):
    """No net: the values of a sample as they are, images with their channels last (which costs nothing)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.dim = shape, math.prod(shape)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, *shape) to (batch, dim)."""
        return (x.permute(0, 2, 3, 1) if len(self.shape) == 3 else x).flatten(1)


# -- the map that suits the data ---------------------------------------------------------------------------------------
SMALLEST_IMAGE = 6  # pixels on the shorter side: below, an image is a vector
FEWEST_UNITS, MOST_UNITS = 1024, 4096  # of a random layer, unless asked for


def make_map(shape: tuple[int, ...] | None, dim: int, width: int | None, knows: Knows = "data") -> FeatureMap:
    """The map for samples of this shape, or without one for a net's features of length `dim`.

    `width` is the number of random features; None: as many as the shape suggests, and none behind a net.
    """
    if shape is None:
        return RandomReLU(dim, width, knows, samplewise=True) if width else FeatureMap(dim)
    if width == 0:
        return FeatureMap(dim)
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_IMAGE:
        units = min(MOST_UNITS, max(FEWEST_UNITS, 1 << (16 * dim - 1).bit_length()))
        return RandomReLU(dim, width or units, knows)
    channels, height, breadth = shape
    side = min(height, breadth)
    patch, cells, usual = 6, 4, 2304
    if side < 12:
        patch, cells, usual = 3, 3, 1152
    elif side < 24:
        patch, cells, usual = 5, 3, 2304
    elif channels > 1:
        patch, cells, usual = 4, 2, 4096
    filters = max(1, (width or usual) // (2 * cells**2))
    return WhitenedPatches((channels, height, breadth), filters, patch, cells, knows)
