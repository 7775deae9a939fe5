"""Layers that the larger nets share: convolution with BatchNorm, squeeze-and-excitation, first weights."""

from __future__ import annotations

from torch import Tensor, nn


def conv_bn(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Give a padded convolution without bias, as the BatchNorm that follows has one."""
    conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out))


def init_convs(net: nn.Module) -> None:
    """Draw every convolution as He et al. do, scaled for ReLU by what goes out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class Excitation(nn.Module):
    """Scale each channel by a number between 0 and 1 that the means of all channels decide."""

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // reduction)
        self.excite = nn.Linear(channels // reduction, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Give the maps, scaled."""
        scale = self.excite(self.squeeze(x.mean((2, 3))).relu_()).sigmoid_()
        return x * scale[:, :, None, None]  # type: ignore[no-any-return]
