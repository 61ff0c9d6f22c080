"""A replica in a process of its own, to be killed: ``python replica_process.py PORT``.

A body of ``hang`` gets no answer, ``slow`` a stream without end, ``two`` one of two pieces, 0.5 s apart,
anything else the process's id.
"""

from __future__ import annotations

import asyncio
import os
import sys


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
            if body == b"hang":
                await reader.read()
            if body in (b"slow", b"two"):
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(2 if body == b"two" else 1_000_000):
                    writer.write(b"2\r\n..\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.5 if body == b"two" else 0.01)
                writer.write(b"0\r\n\r\n")
                continue
            said = str(os.getpid()).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.transport.abort()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
