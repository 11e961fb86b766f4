"""What a client shows a collector."""

from __future__ import annotations

import pytest

from anchorlib.errors import OptionError
from anchorlib.wire import Address, Credentials, open_channel


def test_the_environment_names_token_and_certificates(tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    found = Credentials.from_environment(
        {
            "ANCHOR_TOKEN_FILE": str(tmp_path / "token"),
            "ANCHOR_CA_FILE": "ca.pem",
            "ANCHOR_CLIENT_CERT": "c.pem",
            "ANCHOR_CLIENT_KEY": "k.pem",
        }
    )
    assert found.metadata == (("authorization", "Bearer s3cret"),)
    assert list(map(str, (found.ca_file, found.cert_file, found.key_file))) == [
        "ca.pem",
        "c.pem",
        "k.pem",
    ]
    both = {"ANCHOR_TOKEN": "x", "ANCHOR_TOKEN_FILE": "/nowhere"}
    assert Credentials.from_environment(both).token == "x"
    assert Credentials.from_environment({}) == Credentials()
    assert Credentials().metadata == ()


@pytest.mark.parametrize("token", ["", "  ", "two\nlines", "schlüssel"])
def test_a_token_that_a_header_cannot_carry_is_refused_and_not_repeated(token):
    with pytest.raises(OptionError) as caught:
        Credentials(token=token)
    assert token.strip() == "" or token not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(OptionError, match="cannot read the token in /nowhere"):
        Credentials.from_environment({"ANCHOR_TOKEN_FILE": "/nowhere"})
    with pytest.raises(OptionError, match=r"no\.pem"):
        open_channel(Address("host", tls=True), Credentials(ca_file=tmp_path / "no.pem"))
