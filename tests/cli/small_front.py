"""A process before replicas that only says how it was started, and whether they answer. Run by path."""

import argparse
import http.server
import json
import urllib.request
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--admin-port", type=int, required=True)
parser.add_argument("--replica", action="append", required=True)
parser.add_argument("--file", type=Path, required=True)
options = parser.parse_args()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        up = [answers(url) for url in options.replica]
        self.send_response(200 if all(up) or self.path != "/health" else 503)
        self.end_headers()
        told = {"replicas": options.replica, "admin": options.admin_port, "up": up, "file": options.file.read_text()}
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *arguments: object) -> None:
        pass


http.server.HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
