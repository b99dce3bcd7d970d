"""Modules whose buffers change shape as they learn."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor
from torch.nn import Module


class ResizableModule(Module):
    """A module whose buffers load in whatever shape was saved, each into memory of its own."""

    may_be_absent: tuple[str, ...] = ()
    """Buffers that are None until they are needed."""

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        device = next(buffer.device for buffer in self._buffers.values() if buffer is not None)
        for name, buffer in self._buffers.items():
            if name in self._non_persistent_buffers_set:
                continue
            saved = state_dict.get(prefix + name)
            if saved is not None:
                # Never in place: copies of this module share its memory.
                dtype = saved.dtype if buffer is None else buffer.dtype
                self._buffers[name] = torch.empty_like(saved, device=device, dtype=dtype)
            elif name in self.may_be_absent:
                self._buffers[name] = None
        super()._load_from_state_dict(state_dict, prefix, *args)


class GrowingModule(ResizableModule):
    """A resizable module whose buffers begin with ``b`` trials."""

    def take(self, trial: Tensor) -> GrowingModule:
        """A copy with some of the trials, ``N`` numbers, in that order, repeats allowed."""
        new = copy(self)
        new._buffers = {
            name: None if buffer is None else buffer[trial]
            for name, buffer in self._buffers.items()
        }
        new._modules = {
            name: module.take(trial) if isinstance(module, GrowingModule) else module
            for name, module in self._modules.items()
        }
        return new
