"""Backbones: nets that turn an image or a vector into a feature vector; the classifier is added elsewhere."""

from fedframe.models.registry import NETS, ZOO_NETS, build_net, default_net

__all__ = ["NETS", "ZOO_NETS", "build_net", "default_net"]
