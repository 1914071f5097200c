"""Endpoints on real sockets that respond as a test says and record what they receive."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PATIENCE_S = 20.0

Answer = Callable[[socket.socket], None]


@dataclass
class Listener:
    """One endpoint. `requests` are the bytes of each, as they came."""

    port: int
    requests: list[bytes] = field(default_factory=list)
    server_names: list[str | None] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@contextmanager
def listening(answer: Answer | bytes, tls: ssl.SSLContext | None = None) -> Iterator[Listener]:
    """Answers every connection, one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = Listener(server.getsockname()[1])
        if tls is not None:
            tls.sni_callback = lambda _, name, __: listener.server_names.append(name)
        thread = threading.Thread(target=_serve, args=(server, listener, answer, tls))
        thread.start()
        try:
            yield listener
        finally:
            listener.closing.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def _serve(
    server: socket.socket, listener: Listener, answer: Answer | bytes, tls: ssl.SSLContext | None
) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            connection.settimeout(PATIENCE_S)
            if tls is not None:
                connection = stack.enter_context(tls.wrap_socket(connection, server_side=True))
            listener.requests.append(read_request(connection))
            if isinstance(answer, bytes):
                connection.sendall(answer)
            else:
                answer(connection)


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536) or _broken()
    head, _, body = data.partition(b"\r\n\r\n")
    [length] = [
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while len(body) < length:
        piece = connection.recv(65_536) or _broken()
        data, body = data + piece, body + piece
    return data


def _broken() -> bytes:
    raise ConnectionError("the request broke off")


def certificates(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for `name`, and a client's that trusts it and nobody else."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / f"{name}.crt", folder / f"{name}.key"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(public, private)
    return server, ssl.create_default_context(cafile=str(public))
