"""How an operator says how GPUs are judged."""

import pytest

from dra_gpu.health.verdicts import Evict
from dra_gpu.health.xids import Severity
from dra_gpu.node import settings
from dra_gpu.node.health_settings import HealthSettings


def chosen(*arguments, **environment):
    return settings.parse(["--vendor=nvidia", "--node-name=a", *arguments], environment).health


def test_by_default_nobody_is_evicted_and_the_catalogue_decides():
    assert chosen() == HealthSettings(Evict.NEVER, 600.0, 5.0, {})


def test_flags_and_variables_say_the_same():
    by_flag = chosen("--health-evict=lost", "--health-hold-off=60", "--xid-policy=94=fatal", "--ignore-xids=13, 31")
    by_variable = chosen(HEALTH_EVICT="lost", HEALTH_HOLD_OFF="60", XID_POLICY="94=fatal", IGNORE_XIDS="13, 31")

    assert by_flag == by_variable
    assert by_flag == HealthSettings(Evict.LOST, 60.0, 5.0, {94: Severity.FATAL, 13: None, 31: None})


def test_a_list_to_ignore_wins_over_a_policy_by_either_name():
    found = chosen("--xid-policy=94=fatal,95=notice", "--additional-xids-to-ignore=94")

    assert found.xid_rules == {94: None, 95: Severity.NOTICE}


@pytest.mark.case("C104")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--ignore-xids= 13, 31 ,,abc,99999999999 ",), "'abc'"),
        (("--ignore-xids=13,99999999999",), "'99999999999'"),
        (("--additional-xids-to-ignore=x",), "'x'"),
        (("--xid-policy=94=evict",), "'94=evict'"),
        (("--health-evict=always",), "'always'"),
        (("--health-hold-off=0",), "'0'"),
        (("--health-period=nan",), "'nan'"),
    ],
)
def test_what_means_nothing_ends_the_start_with_its_name(arguments, named, capsys):
    with pytest.raises(SystemExit) as ended:
        chosen(*arguments)

    assert ended.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.case("C104")
def test_a_variable_that_means_nothing_does_as_well(capsys):
    with pytest.raises(SystemExit):
        chosen(IGNORE_XIDS="13;31")

    assert "'13;31'" in capsys.readouterr().err


@pytest.mark.parametrize("evict", ["sometimes", ""])
def test_a_variable_for_eviction_is_one_of_the_words_or_counts_as_none(evict, capsys):
    if not evict:
        assert chosen(HEALTH_EVICT=evict).evict is Evict.NEVER
        return
    with pytest.raises(SystemExit):
        chosen(HEALTH_EVICT=evict)
    assert "sometimes" in capsys.readouterr().err


def test_a_hold_off_longer_than_anybody_waits_is_one():
    assert chosen("--health-hold-off=1e300").policy.recovery.hold_off.days == 36500
