"""Tables in and out of an optimizer: logs, late outcomes, open trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.optimizers.journal_mixin import JournalMixin
from tvbo.optimizers.refusals import TrialError
from tvbo.spaces import Parameters
from tvbo.values import as_number, as_numbers

if TYPE_CHECKING:
    import pandas as pd


class TablesMixin(JournalMixin):
    """Tells and attaches whole tables, and shows open trials as one.

    A table is taken as a whole or not at all: each row is checked before the first one counts, and
    a journal has all of them or none. Columns that are not asked for are ignored.
    """

    def open_frame(self: Any) -> pd.DataFrame:
        """Return a table of the open trials: trial, time, action, context; oldest first."""
        import pandas as pd

        num_contexts = 0 if self.contexts is None else self.contexts.dim
        names = self.labels.columns(self.search_space.dim, num_contexts)
        rows = [trial.to_row() for trial in self.open_trials]
        return pd.DataFrame(rows, columns=None if rows else ["trial", "t", *names])

    def tell_frame(
        self: Any,
        table: pd.DataFrame,
        outcome: str | None = None,
        trial: str = "trial",
        variance: str | None = None,
    ) -> int:
        """Record the outcomes of several trials.

        Args:
            table: One row for each trial; rows with an empty outcome, or of several outcomes only
                empty ones, are left open.
            outcome: Column of the outcomes; None is ``"outcome"``, and of several outcomes the
                columns of their names.
            trial: Column of the numbers of the trials.
            variance: Column of the variances of their noise; None where they are not known.

        Returns:
            The number of outcomes told.

        Raises:
            InputDataError: if a column is missing, a trial stands in two rows, or as :meth:`tell`,
                with the row; nothing changes.
            TrialError: as :meth:`tell`, with the row; nothing changes.
        """
        columns = [_column(table, trial), *self._outcome_cells(table, outcome, variance)]
        rows: dict[int, tuple[list[float], list[float] | None]] = {}
        for label, number, Y, Yvar in zip(table.index, *columns, strict=True):
            if all(cell is None for cell in Y.values()):
                continue
            with _in_row(label):
                # A column of whole numbers with a gap is one of floats.
                is_whole = isinstance(number, float) and number.is_integer()
                found = self._find(int(number) if is_whole else number)
                if found.id in rows:
                    raise InputDataError(f"Expected each trial once. Got trial {found.id} again.")
                rows[found.id] = told = _numbers(Y), Yvar and _numbers(Yvar)
                self._check_outcome(found, self._observation(found, *told))
        with self._in_one_transaction():
            for trial_id, (Y, Yvar) in rows.items():
                self.tell(trial_id, Y, Yvar)
        return len(rows)

    def attach_frame(
        self: Any,
        table: pd.DataFrame,
        outcome: str | None = None,
        t: str = "t",
        variance: str | None = None,
    ) -> int:
        """Attach and tell the rows of a log.

        Args:
            table: One row for each outcome, with a column for each parameter, by name or as
                ``action_0``, ``context_0``, ..., in any order of time.
            outcome: Column of the outcomes; None is ``"outcome"``, and of several outcomes the
                columns of their names.
            t: Column of the times: numbers, or where the optimizer has a unit of time timestamps,
                also in ISO 8601.
            variance: Column of the variances of their noise; None where they are not known.

        Returns:
            The number of rows.

        Raises:
            InputDataError: if a column is missing or a cell empty, or as :meth:`attach` and
                :meth:`tell`, with the row; nothing changes.
        """
        X = _rows(table, self.labels.actions, "action", self.search_space.dim)
        contexts: Sequence[Tensor | None] = [None] * len(table)
        if self.contexts is not None:
            contexts = list(_rows(table, self.labels.contexts, "context", self.contexts.dim))
        columns = [_column(table, t), *self._outcome_cells(table, outcome, variance)]
        rows: list[tuple[Any, ...]] = []
        parts = zip(table.index, X, contexts, *columns, strict=True)
        for label, action, context, time, Y, Yvar in parts:
            with _in_row(label):
                action, context = self._read_action(action), self._check_context(context)
                number = self.num_trials + len(rows) + 1
                trial = self._trial(number, action, self._number(time), context)
                told = _numbers(Y), Yvar and _numbers(Yvar)
                self._check_outcome(trial, self._observation(trial, *told))
                rows.append((action, time, context, *told))
        with self._in_one_transaction():
            for action, time, context, Y, Yvar in rows:
                self.tell(self.attach(action, time, context), Y, Yvar)
        return len(rows)

    def _outcome_cells(
        self: Any, table: pd.DataFrame, outcome: str | None, variance: str | None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any] | None]]:
        """Return the outcomes of each row by column, and their variances if there is a column."""
        names = self.labels.outcome_columns if outcome is None else [outcome]
        if len(self.labels.outcomes) > 1 and (outcome is not None or variance is not None):
            raise InputDataError(
                f"Expected columns {', '.join(self.labels.outcomes)}, and neither outcome nor "
                f"variance: tell() takes variances. Got {outcome!r} and {variance!r}."
            )
        rows = zip(*(_column(table, name) for name in names), strict=True)
        outcomes = [dict(zip(names, row, strict=True)) for row in rows]
        if variance is None:
            return outcomes, [None] * len(table)
        return outcomes, [{variance: cell} for cell in _column(table, variance)]


def _column(table: pd.DataFrame, name: str) -> list[Any]:
    """Return the cells of a column."""
    if name not in table.columns:
        raise InputDataError(
            f"Expected a column {name!r} in the table. Got {', '.join(map(str, table.columns))}."
        )
    import pandas as pd

    return [None if pd.isna(cell) is True else cell for cell in table[name].tolist()]


def _numbers(cells: Mapping[str, Any]) -> list[float]:
    """Return the cells of a row by column."""
    return [as_number(name, cell) for name, cell in cells.items()]


def _rows(table: pd.DataFrame, parameters: Parameters | None, kind: str, width: int) -> Tensor:
    """Return the columns of actions or contexts, ``n x width``."""
    if parameters is not None:
        return parameters.encode_table(table)
    columns = [_column(table, f"{kind}_{i}") for i in range(width)]
    return as_numbers(f"the columns {kind}_0, ...", columns).T


@contextmanager
def _in_row(label: Any) -> Iterator[None]:
    """Name the row in errors about what it holds."""
    try:
        yield
    except (TrialError, InputDataError) as error:
        raise type(error)(f"{error} In row {label!r} of the table; nothing was told.") from error
    except (TypeError, ValueError) as error:
        raise InputDataError(f"{error} In row {label!r} of the table; nothing was told.") from error
