"""An engine that serves nothing but what it claims about itself. Run by path."""

import argparse
import http.server
import json
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--kv-dtype", required=True)
parser.add_argument("--fail", default="")
parser.add_argument("--die", default="", help="the last words when somebody asks for its claims")
options = parser.parse_args()
if options.fail:
    print(f"loading\nRuntimeError: {options.fail}", file=sys.stderr, flush=True)
    sys.exit(1)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if options.die and self.path == "/claims":
            print(f"RuntimeError: {options.die}", flush=True)
            os._exit(3)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"kv_dtype": options.kv_dtype, "version": "1.0"}).encode())

    def log_message(self, *arguments: object) -> None:
        pass


print(f"kv dtype {options.kv_dtype}", flush=True)
http.server.HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
