"""``optistack route`` as processes: killed replicas, killed workers, signals, TLS and keys, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from plugins.routing.tests.rig import Client, play, post

from optistack.errors import InputError
from optistack_routing.router.config import load, read_keys
from optistack_routing.router.control import build_control
from optistack_routing.router.listen import listen

REPLICA = Path(__file__).with_name("replica_process.py")
ROUTE = "import sys; from optistack_routing.commands import app; app(sys.argv[1:], standalone_mode=True)"
DEADLINE_S = 30.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Running:
    port: int
    admin_port: int
    router: subprocess.Popen[bytes]
    replicas: list[subprocess.Popen[bytes]]
    tls: ssl.SSLContext | None = None
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls))
        self.clients.append(client)
        return client

    async def ask(self, body: bytes = b"{}", **more: str) -> tuple[int, bytes]:
        client = await self.connect()
        await client.say(post(body, **more))
        status, _, answer = await client.answer()
        client.leave()
        return status, answer

    async def state(self) -> dict[str, Any]:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.admin_port))
        await client.say(b"GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _, _, body = await client.answer()
        client.leave()
        state = json.loads(body)
        assert isinstance(state, dict)
        return state

    async def until(self, done: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        end = monotonic() + DEADLINE_S
        while True:
            try:
                state = await self.state()
                if done(state):
                    return state
            except OSError:
                assert self.router.poll() is None, "the router has ended"
            assert monotonic() < end
            await asyncio.sleep(0.02)

    async def ended(self) -> int:
        return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(None, self.router.wait), DEADLINE_S)


@asynccontextmanager
async def running(replicas: int, *words: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Running]:
    ports = [free_port() for _ in range(replicas)]
    engines = [subprocess.Popen([sys.executable, str(REPLICA), str(port)]) for port in ports]
    port, admin = free_port(), free_port()
    command = [sys.executable, "-c", ROUTE, "--port", str(port), "--admin-port", str(admin), *words]
    command += [word for engine in ports for word in ("--replica", f"127.0.0.1:{engine}")]
    router = subprocess.Popen(command)
    made = Running(port, admin, router, engines, tls)
    try:
        await made.until(lambda state: sum(replica["accepts"] for replica in state["replicas"]) == replicas)
        yield made
    finally:
        for client in made.clients:
            client.leave()
        for process in (router, *engines):
            process.kill()
            process.wait()


def test_killing_a_replica_is_not_noticed_before_a_first_byte() -> None:
    async def scenario() -> None:
        async with running(2) as r:
            streams = []
            for number in range(4):
                client = await r.connect()
                await client.say(post(b"slow", session=f"stream{number}"))
                await client.head()
                streams.append(client)
            waiting = [await r.connect() for _ in range(20)]
            for number, client in enumerate(waiting):
                await client.say(post(b"hang", session=f"s{number}"))
            state = await r.until(lambda state: state["in_flight"] == 24)
            assert all(replica["in_flight"] > 2 for replica in state["replicas"])
            dead, alive = r.replicas
            dead.kill()
            dead_url = state["replicas"][0]["url"]
            moved = await r.until(lambda state: state["replicas"][0]["in_flight"] == 0)
            assert moved["replicas"][0]["url"] == dead_url
            broken = moved["counted"]["outcomes"].get("broken", 0)
            assert 0 < broken < 4  # the dead one's streams, which had begun; nothing else
            assert moved["in_flight"] == 24 - broken  # the others wait on the one that is left
            assert sum(moved["counted"]["retries"].values()) >= 1
            still = 0
            for client in streams:
                try:
                    await asyncio.wait_for(client.reader.readexactly(2000), DEADLINE_S)
                    still += 1
                except (asyncio.IncompleteReadError, ConnectionError):
                    pass
            assert still == 4 - broken
            assert (await r.ask())[1] == str(alive.pid).encode()
            for client in (*streams, *waiting):
                client.leave()
            quiet = await r.until(lambda state: state["in_flight"] == 0)
            assert quiet["counted"]["in_flight"] == 0

    play(scenario())


def test_sigterm_finishes_what_is_under_way() -> None:
    async def scenario() -> None:
        async with running(1) as r:
            client = await r.connect()
            await client.say(post(b"two"))
            await client.head()
            r.router.send_signal(signal.SIGTERM)
            assert (await client.rest()).endswith(b"0\r\n\r\n")
            assert await r.ended() == 0

    play(scenario())


def test_a_second_signal_ends_at_once() -> None:
    async def scenario() -> None:
        async with running(1) as r:
            client = await r.connect()
            await client.say(post(b"slow"))
            await client.head()
            r.router.send_signal(signal.SIGTERM)
            with pytest.raises(OSError):
                while True:
                    (await r.connect()).leave()
            r.router.send_signal(signal.SIGTERM)
            assert await r.ended() == 0

    play(scenario())


def test_workers_share_one_ledger_and_a_dead_one_gives_everything_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(2, "--workers", "2", "--access-log", str(tmp_path / "log")) as r:
            home = {number: (await r.ask(b"x" * 5000, session=str(number)))[1] for number in range(8)}
            for number in range(8):  # over fresh connections, so over both workers
                assert (await r.ask(b"x" * 5000, session=str(number)))[1] == home[number]
            for _ in range(10):
                client = await r.connect()
                await client.say(post(b"slow"))
                await client.head()
            # Counts travel once a second, and those of a killed worker's last second are lost.
            state = await r.until(lambda s: s["in_flight"] == 10 and s["counted"]["answers"].get("200") == 16)
            assert state["workers"] == 2
            children = Path(f"/proc/{r.router.pid}/task/{r.router.pid}/children").read_text().split()
            assert len(children) == 2
            os.kill(int(children[0]), signal.SIGKILL)
            left = await r.until(lambda state: state["in_flight"] < 10)
            os.kill(int(children[1]), signal.SIGKILL)
            await r.until(lambda state: state["in_flight"] == 0)
            assert left["in_flight"] == sum(replica["in_flight"] for replica in left["replicas"])
            assert (await r.ask(session="0"))[0] == 200  # as soon as one is there again
            served = await r.until(lambda state: state["counted"]["answers"].get("200", 0) >= 17)
            assert served["counted"]["in_flight"] == 0
            (tmp_path / "log").rename(tmp_path / "old")
            r.router.send_signal(signal.SIGHUP)
            end = monotonic() + DEADLINE_S
            while not (tmp_path / "log").exists() and monotonic() < end:
                await asyncio.sleep(0.01)
            r.router.send_signal(signal.SIGTERM)
            assert await r.ended() == 0
            assert (tmp_path / "log").exists()
            lines = [json.loads(line) for line in (tmp_path / "old").read_text().splitlines()]
            assert sum(line["session"] == "3" for line in lines) == 2

    play(scenario())


def test_workers_finish_what_they_have_when_the_deciding_process_is_killed() -> None:
    async def scenario() -> None:
        async with running(1, "--workers", "2") as r:
            children = Path(f"/proc/{r.router.pid}/task/{r.router.pid}/children").read_text().split()
            assert (await r.ask())[0] == 200
            client = await r.connect()
            await client.say(post(b"two"))
            await client.head()
            os.kill(r.router.pid, signal.SIGKILL)
            assert (await client.rest()) == b"2\r\n..\r\n2\r\n..\r\n0\r\n\r\n"
            end = monotonic() + DEADLINE_S
            while any(Path(f"/proc/{child}").exists() and "Z" not in state_of(child) for child in children):
                assert monotonic() < end, "a worker outlives the process that decides"
                await asyncio.sleep(0.02)
            with pytest.raises(ConnectionRefusedError):
                await r.connect()

    play(scenario())


def state_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"  # gone since


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def test_tls_and_a_key(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")

    async def scenario() -> None:
        words = ("--tls-cert", str(cert), "--tls-key", str(key), "--api-key-file", str(keys))
        async with running(1, *words, tls=ssl.create_default_context(cafile=str(cert))) as r:
            assert (await r.ask())[0] == 401
            client = await r.connect()
            await client.say(post(extra="Authorization: Bearer wrong\r\n"))
            assert (await client.answer())[0] == 401
            for extra in ("Authorization: Bearer second\r\n", "x-api-key: first\r\n"):
                client = await r.connect()
                await client.say(post(b"x" * 200_000, extra=extra))
                assert (await client.answer())[0] == 200
            client = await r.connect()
            await client.say(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")  # a load balancer has no key
            assert (await client.answer())[0] == 200

    play(scenario())


def refusal(words: dict[str, Any], text: str | None = None, folder: Path | None = None) -> str:
    file = None
    if text is not None and folder is not None:
        file = folder / "route.yaml"
        file.write_text(text)
    with pytest.raises(InputError) as error:
        build_control(load(file, words))
    return str(error.value)


def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path: Path) -> None:
    assert "no option 'replica'" in refusal({}, "replica: x\n", tmp_path)
    assert "Did you mean 'replicas'?" in refusal({}, "replica: x\n", tmp_path)
    assert "route.yaml:2 is not valid YAML" in refusal({}, "port: 1\n  bad: [\n", tmp_path)
    assert "is a mapping" in refusal({}, "- 1\n", tmp_path)
    assert refusal({"port": 70000}).startswith("--port: option port of the router must be at most 65535, not 70000.")
    assert "route.yaml:2: option retries of the router must be a whole number, not 'x'." in refusal(
        {}, "port: 1\nretries: x\n", tmp_path
    )
    assert "route.yaml:2: the key 'port' is already set in line 1" in refusal({}, "port: 1\nport: 2\n", tmp_path)
    assert "3 cannot be a key here" in refusal({}, "3: 4\n", tmp_path)
    assert "precise.page_tokens of the router is missing" in refusal(
        {}, "precise: {checkpoint: /x, events: {}}\n", tmp_path
    )
    assert "has no option 'page_token' in precise. Did you mean 'page_tokens'?" in refusal(
        {}, "precise: {checkpoint: /x, events: {}, page_token: 3}\n", tmp_path
    )
    assert "is not the URL of a replica" in refusal({"replicas": ["ftp://h"]})
    assert "names no port" in refusal({"replicas": ["gpu-3"]})
    assert "each needs its own" in refusal({"port": 9000, "admin_port": 9000})
    assert "has a path" in refusal({"replicas": ["http://h:1/v1"]})
    assert "'a b' is not the name of an HTTP header" in refusal({"session_headers": ["a b"]})
    assert refusal({"replica_dns": "engines"}).endswith("it names no port. Write NAME:PORT.")
    assert "is new in each request" in refusal({"session_headers": ["X-Request-ID"]})
    assert "go together" in refusal({"tls_cert": "x"})
    none, cert, empty = tmp_path / "none.pem", tmp_path / "cert.pem", tmp_path / "empty.pem"
    cert.write_text("-----BEGIN CERTIFICATE-----\n")
    empty.touch()
    assert f"{none}: No such file" in refusal({"admin_tls_cert": cert, "admin_tls_key": none})
    assert f"{none}: No such file" in refusal({"admin_tls_cert": none, "admin_tls_key": empty})
    assert f"{empty} holds no private key" in refusal({"admin_tls_cert": cert, "admin_tls_key": empty})
    assert f"{none}: No such file" in refusal({"upstream_ca": none})
    assert "for everybody" in refusal({"admin_host": "0.0.0.0"})
    assert "no policy 'kv'" in refusal({"policy": "kv"})
    assert "max_homes" in refusal({"parameters": {"max_home": 2}})
    with pytest.raises(InputError, match="No such file"):
        read_keys(tmp_path / "none", "NONE")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="cannot listen"):
            listen("127.0.0.1", taken.getsockname()[1])
