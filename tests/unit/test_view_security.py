"""Security settings, spelled for one Kafka client and given to another."""

from __future__ import annotations

import ssl

import pytest

from perdure.connectors.faust_views.security import SecurityUnsupported, Value, client_security


def test_without_settings_the_connection_is_plain() -> None:
    """What is about sockets or compression is the other client's."""
    assert client_security({"socket.keepalive.enable": True, "compression.type": "zstd"}) == {
        "security_protocol": "PLAINTEXT"
    }


def test_sasl_is_passed_on() -> None:
    """Protocol, mechanism, user and password arrive under their other names."""
    given: dict[str, Value] = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": "secret",
    }
    assert client_security(given) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ada",
        "sasl_plain_password": "secret",
    }


def test_tls_checks_the_broker_unless_told_otherwise() -> None:
    """Verification and host names are checked by default, and only the settings for it switch them off."""
    context = client_security({"security.protocol": "SSL"})["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    nameless = client_security({"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"})[
        "ssl_context"
    ]
    assert (nameless.verify_mode, nameless.check_hostname) == (ssl.CERT_REQUIRED, False)
    blind = client_security({"security.protocol": "ssl", "enable.ssl.certificate.verification": False})
    assert blind["ssl_context"].verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    "given",
    [
        {"sasl.oauthbearer.config": "x"},
        {"ssl.keystore.location": "x"},
        {"security.protocol": "sasl_ssl", "sasl.mechanism": "GSSAPI"},
        {"security.protocol": "sasl_plaintext"},
        {"security.protocol": "ssl", "ssl.ca.location": "/there/is/none"},
    ],
)
def test_what_can_not_be_honoured_is_refused(given: dict[str, Value]) -> None:
    """To connect with less security than was asked for would be worse than not to connect."""
    with pytest.raises(SecurityUnsupported):
        client_security(given)
