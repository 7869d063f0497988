"""An authority and a server's certificate for 127.0.0.1, made with openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path) -> dict[str, str]:
    """Make an authority and a certificate for 127.0.0.1; return the files as nats/tls.conf names them."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on PATH to make certificates with")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -addext keyUsage=critical,keyCertSign "
        "-keyout ca.key -out ca.crt",  # Python 3.13 asks for the key usage
        "req -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout s.key -out s.csr",
        "x509 -req -in s.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copy -out s.crt",
    ):
        subprocess.run([openssl, *command.split()], cwd=folder, check=True, capture_output=True, timeout=30)
    names = {"CERT": "s.crt", "KEY": "s.key", "CA": "ca.crt"}
    return {f"PENSTOCK_TLS_{name}": str(folder / file) for name, file in names.items()}
