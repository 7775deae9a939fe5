"""Backbones: nets that turn an image or a vector into a feature vector; the classifier is added elsewhere."""

from fedframe.models.registry import NETS, build_net, default_net

__all__ = ["NETS", "build_net", "default_net"]
