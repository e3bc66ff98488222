"""The ``kafka.*`` settings, which are librdkafka's, as aiokafka takes them: security only.

Everything else that is passed through (sockets, compression, debugging) concerns the other client and is left
out here. A security setting that has no counterpart is refused: to connect with less than what was asked for
would be worse.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from perdure.schemas.errors import Reject

Value: TypeAlias = str | int | bool

_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
_KNOWN: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_PREFIXES: Final = ("sasl.", "ssl.", "security.")


class SecurityUnsupported(Reject):
    """The view's Kafka client can not do what a security setting asks for."""

    code = "view_security_unsupported"
    remedy = "Use SASL PLAIN or SCRAM, or TLS with files, for the view (a settings file of its own)."


def client_security(kafka: Mapping[str, Value]) -> dict[str, Any]:
    """Keyword arguments for AIOKafkaConsumer. Raises :class:`SecurityUnsupported`."""
    for name in sorted(kafka):
        if name not in _KNOWN and name.startswith(_PREFIXES):
            raise SecurityUnsupported(f"kafka.{name}.")
    protocol = str(kafka.get("security.protocol", "PLAINTEXT")).upper()
    arguments: dict[str, Any] = {"security_protocol": protocol}
    if protocol.startswith("SASL_"):
        mechanism = str(kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", ""))).upper()
        if mechanism not in _MECHANISMS:
            raise SecurityUnsupported(f"kafka.sasl.mechanism is {mechanism or 'not set'}.")
        arguments["sasl_mechanism"] = mechanism
        arguments["sasl_plain_username"] = str(kafka.get("sasl.username", ""))
        arguments["sasl_plain_password"] = str(kafka.get("sasl.password", ""))
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = _context(kafka)
    return arguments


def _context(kafka: Mapping[str, Value]) -> ssl.SSLContext:
    def text(name: str) -> str | None:
        value = kafka.get(name)
        return None if value is None else str(value)

    try:
        context = ssl.create_default_context(cafile=text("ssl.ca.location"), cadata=text("ssl.ca.pem"))
        certificate = text("ssl.certificate.location")
        if certificate is not None:
            context.load_cert_chain(certificate, text("ssl.key.location"), text("ssl.key.password"))
    except (OSError, ValueError) as error:
        raise SecurityUnsupported(f"The TLS files can not be read: {error}.") from error
    # Both are how librdkafka spells "do not check"; they are honoured, since the other clients do.
    if text("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if str(kafka.get("enable.ssl.certificate.verification", True)).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
