"""The certificate over the years, judged by another implementation of what a client checks."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509 import verification

from dra_gpu.webhook import certificates
from dra_gpu.webhook.certificates import KeyPair, TlsMaterial

NAMES = ("dra-gpu-webhook.dra-gpu.svc", "dra-gpu-webhook.dra-gpu", "dra-gpu-webhook")
START = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = TlsMaterial.of({})
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def trusted(authorities, serving, now, name=NAMES[0]):
    """Tell whether a client that trusts some authorities accepts a certificate at a moment."""
    store = verification.Store(x509.load_pem_x509_certificates(authorities))
    verifier = verification.PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(name))
    try:
        verifier.verify(x509.load_pem_x509_certificate(serving.certificate), [])
    except verification.VerificationError:
        return False
    return True


@pytest.fixture(scope="module")
def first():
    return certificates.renewed(EMPTY, NAMES, START)


def test_from_nothing_comes_an_authority_and_a_certificate_that_it_vouches_for(first):
    for name in NAMES:
        assert trusted(first.authorities, first.serving, START, name)
    assert not trusted(first.authorities, first.serving, START, "other.dra-gpu.svc")
    assert certificates.expiry(first.serving) == START + certificates.SERVING_LIFE


def test_as_long_as_nothing_is_due_nothing_changes(first):
    assert certificates.renewed(first, NAMES, START) is first
    assert certificates.renewed(TlsMaterial.of(first.data()), NAMES, START + 50 * DAY).data() == first.data()


def test_a_certificate_is_renewed_a_month_before_its_end_by_the_authority_that_is_known(first):
    later = certificates.renewed(first, NAMES, START + 61 * DAY)

    assert later.serving != first.serving
    assert later.authorities == first.authorities
    assert trusted(first.authorities, later.serving, START + 61 * DAY)


def test_a_new_authority_is_announced_an_hour_before_it_signs(first):
    now = START + 250 * DAY
    known = certificates.renewed(first, NAMES, START + 190 * DAY)

    announced = certificates.renewed(known, NAMES, now)
    waiting = certificates.renewed(announced, NAMES, now + HOUR / 2)
    signed = certificates.renewed(announced, NAMES, now + HOUR)

    assert announced.authorities.startswith(first.authorities)
    assert announced.authorities != first.authorities
    assert announced.serving == known.serving
    assert waiting is announced
    assert signed.authorities == announced.authorities
    assert not trusted(first.authorities, signed.serving, now + HOUR)
    assert trusted(announced.authorities, signed.serving, now + HOUR)


@pytest.mark.parametrize("seed", range(6))
def test_for_five_years_whoever_heard_of_the_authorities_an_hour_ago_accepts_the_certificate(seed):
    rng = random.Random(seed)
    now, material = START, certificates.renewed(EMPTY, NAMES, START)
    heard = material.authorities
    seen = set()

    while now < START + 5 * 365 * DAY:
        # Replicas look once a minute; what is between two looks here is one that is away for days, and then back.
        now += rng.choice([HOUR, 10 * HOUR, DAY, 9 * DAY, 20 * DAY])
        found = certificates.renewed(material, NAMES, now)
        assert trusted(heard, found.serving, now) or not trusted(heard, material.serving, now + HOUR)
        assert trusted(found.authorities, found.serving, now + HOUR / 2)
        assert found.authorities.count(b"BEGIN CERTIFICATE") <= 4
        heard, material = found.authorities, found
        seen.add(found.serving.certificate)

    assert len(seen) > 20


@pytest.mark.parametrize("lost", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("value", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_whatever_is_lost_or_damaged_is_made_anew_at_once(first, lost, value):
    damaged = TlsMaterial.of({**first.data(), lost: value})

    found = certificates.renewed(damaged, NAMES, START + DAY)

    assert trusted(found.authorities, found.serving, START + DAY)
    assert certificates.renewed(found, NAMES, START + DAY) is found


def test_a_lost_key_of_the_authority_does_not_take_away_a_certificate_that_is_trusted(first):
    found = certificates.renewed(TlsMaterial.of({**first.data(), "ca.key": b""}), NAMES, START + DAY)

    assert found.serving == first.serving
    assert trusted(first.authorities, found.serving, START + DAY)


def test_another_service_needs_another_certificate(first):
    found = certificates.renewed(first, ("a.b.svc",), START + DAY)

    assert trusted(first.authorities, found.serving, START + DAY, "a.b.svc")


def test_after_a_year_without_a_webhook_everything_is_new(first):
    now = START + 400 * DAY

    found = certificates.renewed(first, NAMES, now)

    assert trusted(found.authorities, found.serving, now)


def test_a_clock_that_was_wrong_for_a_while_ends_in_one_certificate(first):
    ahead = certificates.renewed(EMPTY, NAMES, START + 3000 * DAY)

    found = certificates.renewed(ahead, NAMES, START)

    assert trusted(found.authorities, found.serving, START)
    assert certificates.renewed(found, NAMES, START + HOUR / 6) is found


def test_a_pair_of_somebody_else_is_not_taken_for_ours(first):
    other = certificates.renewed(EMPTY, NAMES, START)
    mixed = TlsMaterial(first.authorities, first.authority_key, KeyPair(other.serving.certificate, first.serving.key))

    found = certificates.renewed(mixed, NAMES, START)

    assert found.serving.certificate != other.serving.certificate
    assert trusted(first.authorities, found.serving, START)


def test_a_key_is_never_shown():
    assert "KEY" not in repr(certificates.renewed(EMPTY, NAMES, START))
