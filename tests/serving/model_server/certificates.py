"""A self-signed certificate for localhost, made by the openssl program."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of a new key and its certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return key, certificate


def write_ssl_config(folder: Path, *, client_verify: bool = False) -> Path:
    """Return the file of an SSLConfig; its certificate is also the authority it trusts."""
    key, certificate = write_certificate(folder)
    path = folder / "ssl.config"
    # A string of JSON is one of a text proto too.
    path.write_text(
        f"server_key: {json.dumps(key.read_text())}\n"
        f"server_cert: {json.dumps(certificate.read_text())}\n"
        f"custom_ca: {json.dumps(certificate.read_text())}\n"
        f"client_verify: {str(client_verify).lower()}\n"
    )
    return path
