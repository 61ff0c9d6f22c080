"""A checkpoint folder (BF16 safetensors, tokenizer, chat template) out of a GGUF file, by transformers.

The values are those of the quantized file, written in BF16: nothing is gained back over it.
"""

import importlib
from pathlib import Path


def run(gguf: str, out: str) -> None:
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    source = Path(gguf)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
