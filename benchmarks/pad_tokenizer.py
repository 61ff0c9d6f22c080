"""Give a tokenizer an entry for every token of a model whose dummy weights answer with any of them.

    python benchmarks/pad_tokenizer.py TOKENIZER.json CONFIG.json OUT.json

vLLM hands all ids of a prompt to the tokenizer's DecodeStream, which decodes them again at every token until one gives
text. A token that the tokenizer does not know gives none: an answer of such tokens costs the time of decoding the whole
prompt for each, in the process that serves all requests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def padded(tokenizer: dict[str, object], tokens: int) -> dict[str, object]:
    """A BPE ``tokenizer`` with entries up to ``tokens``, which no text is split into. Raises ValueError for another."""
    model = tokenizer["model"]
    if not isinstance(model, dict) or model.get("type") != "BPE":
        raise ValueError("the tokenizer is no BPE")
    known = set(model["vocab"].values())
    more = {f"<{at}>": at for at in range(tokens) if at not in known}
    return {**tokenizer, "model": {**model, "vocab": {**model["vocab"], **more}}}


def main() -> None:
    source, config, out = map(Path, sys.argv[1:])
    tokens = json.loads(config.read_text())["vocab_size"]
    out.write_text(json.dumps(padded(json.loads(source.read_text()), tokens), ensure_ascii=False))


if __name__ == "__main__":
    main()
