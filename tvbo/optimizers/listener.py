"""Functions that are called after each change of an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvbo.storage.recorded import Event
from tvbo.trial import Trial


@dataclass(frozen=True)
class Listener:
    """Functions that are called after changes; see ``Optimizer.add_listener``."""

    on_ask: Callable[[Trial], object] | None
    on_tell: Callable[..., object] | None
    on_fit: Callable[[dict[str, list[float]]], object] | None
    on_loss: Callable[[Trial, str], object] | None

    def __call__(self, event: Event) -> None:
        """Call the function of an event, if there is one."""
        match event:
            case Event("refit", fit=dict() as fit) if self.on_fit:
                self.on_fit(fit)
            case Event("ask", trial=Trial() as trial) if self.on_ask:
                self.on_ask(trial)
            case Event("tell", trial=Trial() as trial, Y=tuple() as Y) if self.on_tell:
                self.on_tell(trial, trial.labels.outcomes_by_name(Y))
            case Event("fail" | "expire", trial=Trial() as trial) if self.on_loss:
                self.on_loss(trial, event.reason)
