"""Rows of the journal."""

import hashlib
import struct
from dataclasses import replace

import pytest
import torch

from tvbo.optimizers import Trial
from tvbo.storage.database import EVENT_COLUMNS
from tvbo.storage.record import Record, chained, generator_digest
from tvbo.storage.recorded import Event

NUMBERS = (0.1, -0.0, 1e-308, 2**53 + 2.0, 1 / 3, -1e308)


@pytest.fixture
def trial():
    return Trial(
        id=3,
        X=torch.tensor([NUMBERS], dtype=torch.float64),
        t=0.1 + 0.2,
        context=torch.tensor([1 / 7], dtype=torch.float64),
        informative=False,
        information_gain=1e-17,
    )


def test_numbers_come_back_as_they_were(trial, generator):
    record = Record.of(Event("ask", trial), generator)
    back = Record.from_row(record.to_row())
    assert back == record
    assert struct.pack("<6d", *back.X) == struct.pack("<6d", *NUMBERS)
    assert back.X[1].hex() == "-0x0.0p+0"
    assert (back.t, back.context) == (0.30000000000000004, (1 / 7,))


def test_a_long_reason_is_shown_cut_on_one_line(trial, generator):
    event = Event("fail", trial, reason="very\nlong " * 900)
    for each in (event, Record.of(event, generator)):
        assert (len(str(each)), str(each)[-3:], "\n" in str(each)) == (1000, "...", False)


@pytest.mark.parametrize(
    "event",
    [
        Event("refit", fit={"lengthscale": [0.1, 0.2]}),
        Event("tell", Trial(1, torch.zeros(1, 1), 1.0), (0.1, 0.5), (0.2, 0.0)),
        Event("fail", Trial(1, torch.zeros(1, 1), 1.0), reason="ein Übel"),
        Event("expire", Trial(1, torch.zeros(1, 1), 1.0), reason="late"),
    ],
    ids=lambda event: event.kind,
)
def test_every_kind_comes_back(event, generator):
    record = Record.of(event, generator)
    assert Record.from_row(record.to_row()) == record
    assert record.X is None


def test_the_generator_is_that_of_the_moment(trial, generator):
    first = Record.of(Event("ask", trial), generator).generator
    assert first == generator_digest(torch.Generator().manual_seed(0))
    torch.rand(1, generator=generator)
    assert Record.of(Event("ask", trial), generator).generator != first


def test_a_link_of_the_chain_by_hand():
    row = ("tell", 1, None, b"\x01", "")
    text = "('abc', 7, 'tell', 1, None, b'\\x01', '')"
    assert chained("abc", 7, row) == hashlib.sha256(text.encode()).hexdigest()


def test_in_words(trial, generator):
    assert str(Record.of(Event("tell", trial, (0.5,), (0.1,)), generator)) == (
        "tell of trial 3, Y=0.5, Yvar=0.1"
    )
    assert str(Record.of(Event("fail", trial, reason="a crash"), generator)) == (
        "fail of trial 3 (a crash)"
    )
    assert "t=0.30000000000000004, context=[0.14" in str(Record.of(Event("ask", trial), generator))
    skipped = replace(trial, skipped=True)
    assert str(Record.of(Event("ask", skipped), generator)).endswith(", skipped")


@pytest.mark.parametrize(
    "fit",
    [
        None,
        "{",
        "[1.0]",
        '{"a": 1.0}',
        '{"a": ["b"]}',
        '{"a": [null]}',
        '{"a": [1' + 400 * "0" + "]}",
        100_000 * "[",
    ],
    ids=["none", "cut", "list", "number", "word", "null", "huge", "deep"],
)
def test_what_was_learned_is_numbers_by_name(generator, fit):
    row = list(Record.of(Event("refit", fit={"a": [1.0]}), generator).to_row())
    place = EVENT_COLUMNS.split(", ").index("fit")
    assert Record.from_row(row).fit == '{"a": [1.0]}'
    row[place] = fit
    with pytest.raises(ValueError):
        Record.from_row(row)
