"""Modules whose buffers change shape while observations come in."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Module


class ResizableModule(Module):
    """A module whose buffers are loaded in the shape in which they were saved."""

    optional_buffers: tuple[str, ...] = ()
    """Names of buffers that are None until they are needed."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        device = next(buffer.device for buffer in self._buffers.values() if buffer is not None)
        for name, buffer in self._buffers.items():
            if name in self._non_persistent_buffers_set:
                continue
            saved = state_dict.get(prefix + name)
            if saved is not None:
                # Into new memory, since copies of this module share the old.
                dtype = saved.dtype if buffer is None else buffer.dtype
                self._buffers[name] = torch.empty_like(saved, device=device, dtype=dtype)
            elif name in self.optional_buffers:
                self._buffers[name] = None
        super()._load_from_state_dict(state_dict, prefix, *args)


class BatchedModule(ResizableModule):
    """A resizable module whose buffers all have the batch as their first dimension."""

    def take(self, element: Tensor) -> Self:
        """Return a copy with the given batch elements.

        Args:
            element: Indices of the batch elements, ``N``, in any order, repeats allowed.
        """
        new = copy(self)
        new._buffers = {
            name: None if buffer is None else buffer[element]
            for name, buffer in self._buffers.items()
        }
        new._modules = {
            name: module.take(element) if isinstance(module, BatchedModule) else module
            for name, module in self._modules.items()
        }
        return new
