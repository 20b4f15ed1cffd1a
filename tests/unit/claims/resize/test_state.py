"""What lies in journals: read by every later release, and by an earlier one as far as it understands it."""

import json
import sqlite3
from contextlib import closing

import pytest

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.resize import table
from dra_gpu.claims.resize.state import Resize, Settings, decode, encode
from dra_gpu.inventory.amounts import NOTHING, Amounts
from dra_gpu.mps.service import Limits

GIB = 2**30
#: As format 1.3 has them; never changed once it is out.
SHARE = (
    '{"kind":"share","uid":"u","device":"gpu-0-shared","share_id":"s","namespace":"team","name":"c","object":"o",'
    '"allocated":{"compute_percent":90,"memory":64424509440,"clients":1,"nvlink_bandwidth":0},'
    '"limit":{"compute_percent":90,"memory":64424509440,"clients":1,"nvlink_bandwidth":0},'
    '"goal":{"compute_percent":20,"memory":17179869184,"clients":1,"nvlink_bandwidth":0},'
    '"applied":{"compute_percent":90,"memory":64424509440,"clients":1,"nvlink_bandwidth":0},'
    '"mps":{"computePercent":90,"memoryBytes":64424509440},'
    '"given_back":{"compute_percent":5,"memory":0,"clients":0,"nvlink_bandwidth":0},'
    '"round":2,"released_round":1,"permit":7,'
    '"permitted":{"compute_percent":90,"memory":64424509440,"clients":1,"nvlink_bandwidth":0}}'
)
WHOLE = '{"kind":"whole","uid":"u","device":"gpu-0","namespace":"team","name":"c","time_slice":"Long","applied":true}'
OWN = Amounts(90, 60 * GIB, 1)
EXPECTED = Resize(
    "u", "gpu-0-shared", "s", "team", "c", "o", OWN, OWN, Amounts(20, 16 * GIB, 1), OWN, Limits(90, 60 * GIB),
    Amounts(5), NOTHING, 2, 1, 7, OWN,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [(SHARE, EXPECTED), (WHOLE, Settings("u", "gpu-0", "team", "c", TimeSliceInterval.LONG, applied=True))],
    ids=["share", "whole"],
)
def test_what_format_1_3_wrote_is_read_and_written_the_same(text, expected):
    assert decode(text) == expected
    assert json.loads(encode(expected)) == json.loads(text)


def test_what_a_later_release_adds_is_ignored_and_what_it_changes_is_left_alone():
    assert decode(SHARE.replace('"round":2', '"round":2,"of_a_later_release":[1]')) == EXPECTED
    assert decode(SHARE.replace('"kind":"share"', '"kind":"of a later release"')) is None
    assert decode(b"\xff") is None


def test_a_row_that_cannot_be_read_costs_itself_alone():
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in table.SCHEMA:
            connection.execute(statement)
        table.keep(connection, EXPECTED, ())
        connection.execute("INSERT INTO resizes VALUES ('v', 'gpu-0-shared', 't', '{')")

        assert table.every(connection) == (EXPECTED,)
