"""A certificate that a server of the tests signs itself, as Java wants it."""

from collections.abc import Callable
from pathlib import Path


def make_certificate(run: Callable[[list[str]], None], key_store: Path, pem: Path, password: str) -> None:
    """Writes the key and its certificate, for 127.0.0.1 and localhost; `run` runs a command."""
    store = ["-keystore", str(key_store), "-storetype", "PKCS12", "-storepass", password]
    names = ["-ext", "san=ip:127.0.0.1,dns:localhost", "-ext", "bc=ca:true"]
    key = ["-keyalg", "RSA", "-keysize", "2048", "-alias", "broker", "-dname", "CN=localhost"]
    run(["keytool", "-genkeypair", *key, *names, *store])
    run(["keytool", "-exportcert", "-rfc", "-alias", "broker", "-file", str(pem), *store])
