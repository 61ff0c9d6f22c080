"""What a token costs vLLM's API server while no token of an answer has given text yet.

    python decode_stream.py TOKENIZER.json PROMPT_TOKENS FIRST_ID LAST_ID

Needs tokenizers. As vLLM's detokenizer does it: a DecodeStream with all ids of the prompt, then a step for each of 60
answered ids, drawn from FIRST_ID to LAST_ID.
"""

from __future__ import annotations

import json
import sys
from random import Random
from statistics import median
from time import perf_counter

import tokenizers
from tokenizers.decoders import DecodeStream

tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
prompt_tokens, first, last = map(int, sys.argv[2:])
draw = Random(0).randrange
stream = DecodeStream(ids=[draw(1000, 30_000) for _ in range(prompt_tokens)], skip_special_tokens=True)
steps_ms, texts = [], 0
for _ in range(60):
    began_s = perf_counter()
    texts += bool(stream.step(tokenizer, draw(first, last)))
    steps_ms.append(1000 * (perf_counter() - began_s))
print(
    json.dumps(
        {
            "tokenizers": tokenizers.__version__,
            "vocabulary": tokenizer.get_vocab_size(),
            "steps_with_text": texts,
            "first_step_ms": round(steps_ms[0], 3),
            "median_step_ms": round(median(steps_ms), 3),
        }
    )
)
