"""A certificate of our own, renewed in steps that every API server can follow. Pure, but for random numbers.

The serving certificate is renewed long before its end, by the authority that API servers know. A new authority is
announced first and signs only `OVERLAP` later, when every API server and every replica has had time to hear of it; the
former one stays announced until it ends. Whatever is missing or cannot be read is made anew at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=365)
SERVING_LIFE = timedelta(days=90)
OVERLAP = timedelta(hours=1)
_RENEW_AT = 1 / 3  # of a life that is left: time for two attempts to be noticed and put right
_BACKDATED = timedelta(hours=1)  # clocks differ
_MOST_AUTHORITIES = 4

_CA_CERT, _CA_KEY, _CERT, _KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate (with its chain) and its key, in PEM. The key is shown nowhere."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What the Secret holds.

    Attributes:
        authorities: in PEM, the newest last; what API servers are to trust.
        authority_key: of the newest.
        serving: what is shown to API servers.
    """

    authorities: bytes
    authority_key: bytes = field(repr=False)
    serving: KeyPair

    @staticmethod
    def of(data: Mapping[str, bytes]) -> "TlsMaterial":
        """Return what a Secret's data hold; what is missing is empty."""
        found = {name: data.get(name, b"") for name in (_CA_CERT, _CA_KEY, _CERT, _KEY)}
        return TlsMaterial(found[_CA_CERT], found[_CA_KEY], KeyPair(found[_CERT], found[_KEY]))

    def data(self) -> dict[str, bytes]:
        """Return the data of a Secret."""
        return {
            _CA_CERT: self.authorities,
            _CA_KEY: self.authority_key,
            _CERT: self.serving.certificate,
            _KEY: self.serving.key,
        }


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def renewed(material: TlsMaterial, names: Sequence[str], now: datetime) -> TlsMaterial:
    """Return what the Secret should hold now; the same object where nothing is to be done.

    Args:
        material: what it holds, or an empty one.
        names: DNS names of the webhook's Service, the most specific first.
        now: with a time zone.
    """
    known = [one for one in _certificates(material.authorities) if one.not_valid_after_utc > now]
    newest = _authority(known, material.authority_key)
    serving = _serving(material.serving)
    if newest is None or _left(newest.certificate, now) <= _RENEW_AT:
        newest = _new_authority(now)
        known = [*known, newest.certificate][-_MOST_AUTHORITIES:]
        material = replace(material, authorities=_bundle(known), authority_key=_pem(newest.key))
    if serving is None or _is_due(serving, newest.certificate, known, names, now):
        return replace(material, authorities=_bundle(known), serving=_new_serving(newest, names, now))
    return material


def expiry(pair: KeyPair) -> datetime:
    """Return when a certificate ends.

    Raises:
        ValueError: it is no certificate in PEM.
    """
    return x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc


def throwaway(now: datetime) -> KeyPair:
    """Return a pair that nobody trusts, to answer health checks with until there is a real one."""
    return _new_serving(_new_authority(now), ("dra-gpu-webhook.invalid",), now)


def _is_due(
    serving: x509.Certificate,
    newest: x509.Certificate,
    known: Sequence[x509.Certificate],
    names: Sequence[str],
    now: datetime,
) -> bool:
    if not _is_good(serving, known, names, now):
        return True
    if not _has_been_heard_of(newest, now):
        return False
    return _left(serving, now) <= _RENEW_AT or not _is_signed_by(serving, newest)


def _is_good(serving: x509.Certificate, known: Sequence[x509.Certificate], names: Sequence[str], now: datetime) -> bool:
    """Tell whether API servers take a certificate, and will for as long as they need to hear of a new authority."""
    return (
        _names(serving) == list(names)
        and now + OVERLAP < serving.not_valid_after_utc
        and serving.not_valid_before_utc <= now
        and any(now + OVERLAP < one.not_valid_after_utc and _is_signed_by(serving, one) for one in known)
    )


def _has_been_heard_of(authority: x509.Certificate, now: datetime) -> bool:
    return now >= authority.not_valid_before_utc + _BACKDATED + OVERLAP


def _left(certificate: x509.Certificate, now: datetime) -> float:
    """Return the part of a life that is left; one that begins in the future has none."""
    if now < certificate.not_valid_before_utc:
        return 0.0
    whole = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return (certificate.not_valid_after_utc - now) / whole


def _is_signed_by(serving: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        serving.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return []
    return found.value.get_values_for_type(x509.DNSName)


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _authority(known: Sequence[x509.Certificate], pem: bytes) -> _Authority | None:
    key = _key(pem)
    if key is None or not known or not _belongs(known[-1], key):
        return None
    return _Authority(known[-1], key)


def _serving(pair: KeyPair) -> x509.Certificate | None:
    found, key = _certificates(pair.certificate), _key(pair.key)
    return found[0] if found and key is not None and _belongs(found[0], key) else None


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _belongs(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)


def _new_authority(now: datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own: two authorities of one name would be mistaken for each other.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"dra-gpu-webhook-ca-{x509.random_serial_number():x}")])
    builder = _builder(name, name, key, now, AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _Authority(builder.sign(key, hashes.SHA256()), key)


def _new_serving(authority: _Authority, names: Sequence[str], now: datetime) -> KeyPair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dra-gpu-webhook")])
    builder = _builder(subject, authority.certificate.subject, key, now, SERVING_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = builder.add_extension(signer, critical=False).sign(authority.key, hashes.SHA256())
    return KeyPair(certificate.public_bytes(Encoding.PEM), _pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _bundle(certificates: Sequence[x509.Certificate]) -> bytes:
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
