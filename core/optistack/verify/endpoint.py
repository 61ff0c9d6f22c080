"""A client of a running engine: the OpenAI-compatible routes, the metrics page, and the engine's own information."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from optistack.errors import CheckFailedError, InputError, NoEngineError
from optistack.stack.spec import is_loopback
from optistack.verify.metrics import Metrics, parse_metrics

if TYPE_CHECKING:
    import httpx

FACTS_TIMEOUT_S = 30.0
"""For what an engine says of itself, which takes no forward pass; a busy API server may take seconds."""

ENGINES_ADDRESS = "Is this the engine's own address, and is it an engine's?"


def first_answer_of(url: str) -> str:
    """``url`` in the name of a step that begins by asking it: how long one who never answers is waited for."""
    return f"{url} ({FACTS_TIMEOUT_S:g} s at most for its first answer)"


@dataclass(frozen=True)
class Completion:
    """An answer. ``cached_tokens`` is ``None`` when the engine does not report it."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    raw: dict[str, Any]


class Endpoint:
    """One engine at ``url`` (scheme, host, port, perhaps a login, which is used and not in ``self.url``).

    Use as a context manager, or call :meth:`close`.

    ``transport`` is for tests: ``httpx.MockTransport``.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        import httpx

        self.url = without_login(url).rstrip("/")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise InputError(
                "The API key has characters that no header of HTTP may have.",
                fix="Is there a line break, or another key's text, in OPTISTACK_API_KEY?",
            )
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._client = httpx.Client(
                base_url=url.rstrip("/"),
                headers=headers,
                timeout=timeout_s,
                transport=transport,
                # A proxy of the environment cannot reach what listens on this machine only.
                trust_env=not on_loopback(self.url),
            )
        except (httpx.InvalidURL, TypeError) as error:
            raise InputError(
                f"{self.url!r} is not a URL: {error}.", fix="Give it like http://127.0.0.1:8000."
            ) from error
        except (ImportError, ValueError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise InputError(
                f"The proxy that the environment names for {self.url} cannot be used: {reason}.",
                fix="Mend HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or name the host in NO_PROXY.",
            ) from error

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Send a request. Raises InputError when nobody answers at the URL, or not in time; any HTTP status is
        returned. ``timeout``, in seconds, overrules the client's own."""
        import httpx

        timeout_s = arguments.setdefault("timeout", self._client.timeout.read)
        try:
            return self._send(method, path, **arguments)
        except httpx.UnsupportedProtocol as error:
            raise InputError(f"{self.url!r} is not a URL.", fix="Give it like http://127.0.0.1:8000.") from error
        except httpx.TimeoutException as error:
            raise InputError(
                f"No engine answers at {self.url}{path} within {timeout_s:g} s.",
                fix=f"{ENGINES_ADDRESS} One that is still loading, or hangs, says so in its log.",
            ) from error
        except httpx.RequestError as error:
            raise InputError(
                f"No engine answers at {self.url}{path}: {type(error).__name__} {error}".rstrip() + ".",
                fix="Is it up? `optistack status` lists what runs here.",
            ) from error

    def _send(self, method: str, path: str, *, stream: bool = False, **arguments: Any) -> httpx.Response:
        """Raises httpx's errors.

        A server may close a kept-alive connection just as a request goes out on it (SGLang does after each answer of
        status 500). Nothing that is asked of an engine does more when asked twice, so such a request is sent once more,
        on another connection, if no answer to it had begun.
        """
        import httpx

        steps: set[str] = set()
        extensions = {"trace": lambda step, _: steps.add(step)}
        first = self._client.build_request(method, path, extensions=extensions, **arguments)
        try:
            return self._client.send(first, stream=stream)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            if not _closed_beforehand(steps):
                raise
        return self._client.send(self._client.build_request(method, path, **arguments), stream=stream)

    def get_json(self, path: str) -> dict[str, Any] | None:
        """The JSON object at ``path``; ``None`` when the engine has no such route."""
        return _object(self._facts(path))

    def metrics(self) -> Metrics:
        """The metrics page, empty when there is none or what is there are no metrics."""
        response = self._facts("/metrics")
        try:
            return parse_metrics(response.text if response.status_code == 200 else "")
        except ValueError:
            return Metrics(())

    def listed(self) -> dict[str, Any]:
        """What the engine's list of models says of the first; empty when it lists none."""
        return _first_listed(self._facts("/v1/models"))

    def model(self) -> str:
        """The first served model's name. Raises NoEngineError when none is listed."""
        response = self._facts("/v1/models")
        if response.status_code in (401, 403):
            fix = "Put the key into OPTISTACK_API_KEY."
            raise NoEngineError(f"{self.url} asks for a key, or for another one ({response.status_code}).", fix=fix)
        listed = _first_listed(response)
        if "id" not in listed:
            bare = self.url.removesuffix("/v1")
            fix = f"Give {bare}." if bare != self.url else ENGINES_ADDRESS
            raise NoEngineError(f"{self.url}/v1/models lists no model (status {response.status_code}).", fix=fix)
        return str(listed["id"])

    def _facts(self, path: str) -> httpx.Response:
        return self.request("GET", path, timeout=min(FACTS_TIMEOUT_S, self._client.timeout.read or FACTS_TIMEOUT_S))

    def complete(
        self,
        prompt: str | list[int],
        *,
        max_tokens: int = 16,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Completion:
        """A greedy completion of ``prompt`` (text or token ids) by the first served model, unless ``model`` is given.
        Extra ``fields`` go into the request's body.

        Raises CheckFailedError with the engine's own message when it answers with an error, or with what is no
        completion.
        """
        body = {
            "model": model or self.model(),
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            **fields,
        }
        response = self.request("POST", "/v1/completions", json=body, headers=headers)
        if response.status_code != 200:
            raise CheckFailedError(f"{self.url} answered {response.status_code} to a completion: {response.text[:300]}")
        return _completion(response, self.url)


def _closed_beforehand(steps: set[str]) -> bool:
    """Whether a request that failed went out on a connection kept alive from before and no answer to it began, by
    httpx's names of its ``steps``."""
    sent, opened, answered = "send_request_headers.started", "connect_tcp.started", "receive_response_headers.complete"
    names = {step.partition(".")[2] for step in steps}
    return sent in names and opened not in names and answered not in names


def _object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        body = response.json() if response.status_code == 200 else None
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _first_listed(response: httpx.Response) -> dict[str, Any]:
    models = (_object(response) or {}).get("data")
    first = models[0] if isinstance(models, list) and models else None
    return first if isinstance(first, dict) else {}


def _completion(response: httpx.Response, url: str) -> Completion:
    """Raises CheckFailedError when the answer is no JSON, or has not the shape of a completion."""
    try:
        raw = response.json()
        usage = raw.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Completion(
            text=str(raw["choices"][0]["text"]),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            cached_tokens=None if cached is None else int(cached),
            raw=raw,
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        kind = response.headers.get("content-type", "no content type")
        raise CheckFailedError(
            f"{url}/v1/completions gave no completion as OpenAI's API has them, but {kind}: {response.text[:200]!r}.",
            fix="Is this the engine's own address, and not that of another server?",
        ) from error


def without_login(url: str) -> str:
    """``url`` as it may be shown: without the ``user:password@`` that it may have."""
    return re.sub(r"//[^/?#]*@", "//", url)


def on_loopback(url: str) -> bool:
    """Whether ``url`` names this machine by a loopback address. Raises InputError when it is no URL."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError as error:
        raise InputError(
            f"{without_login(url)!r} is not a URL: {error}.", fix="Give it like http://127.0.0.1:8000."
        ) from error
    return is_loopback(host)
