"""Sites for tests: a real server on 127.0.0.1 that answers with exactly the bytes that a test wants.

It runs in threads, so that tests on trio and on asyncio can ask it alike.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

MAX_HEAD_BYTES = 64 * 1024


@attrs.frozen
class Asked:
    """One request, as it came."""

    target: str
    headers: dict[str, str]


Answer = bytes | Iterable[bytes]
Page = Answer | Callable[[Asked], Answer]


@attrs.define
class Site:
    """A running site: where it is, and what it was asked, in order."""

    port: int
    scheme: str = "http"
    asked: list[Asked] = attrs.field(factory=list)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [asked.target for asked in self.asked]


def reply(body: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole HTTP answer with a right Content-Length."""
    return head(status, {"Content-Length": str(len(body))} | dict(headers or {})) + body


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of an answer alone."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Said So\r\n{lines}\r\n".encode("latin-1")


def redirect(location: str, status: int = 302) -> bytes:
    """An answer that sends the client on."""
    return reply(status=status, headers={"Location": location})


@contextlib.contextmanager
def open_site(pages: Mapping[str, Page], *, tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    """Serve pages by their exact target; anything else is a 404."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):  # the client left, or refused our certificate: its right
                connection = self.request
                if tls is not None:
                    connection.settimeout(5)
                    connection = tls.wrap_socket(connection, server_side=True)
                with contextlib.closing(connection):
                    self._answer(connection)

        def _answer(self, connection: socket.socket) -> None:
            asked = _read(connection)
            if asked is None:
                return
            site.asked.append(asked)
            page = pages.get(asked.target, reply(b"no such page", 404))
            answer = page(asked) if callable(page) else page
            for piece in [answer] if isinstance(answer, bytes) else answer:
                connection.sendall(piece)
            # closing with unread bytes or a reader behind would reset the connection
            connection.shutdown(socket.SHUT_WR)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site = Site(server.server_address[1], "https" if tls else "http")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.socket.close()


def _read(connection: socket.socket) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data and len(data) < MAX_HEAD_BYTES:
        more = connection.recv(4096)
        if not more:
            return None
        data += more
        if not data[:1].isalpha():
            return Asked("not http", {})  # a TLS greeting, say
    first, *lines = data.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name
    }
    return Asked(first.split(" ")[1], headers)


def certificate(directory: Path, *names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A certificate for these names: the server's context, and a client's that trusts it and no other."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = directory / "certificate.pem"
    file.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
