"""Prompts from the Python files and texts of this machine: code and prose, split by package into train and held-out.

    python3 prompts.py --target CHECKPOINT --out PROMPTS.jsonl [--train 60000] [--held-out 400]

Each line: domain, split, package, form, ids (token ids of the prompt). Two forms of each domain: "continue" is a piece
of a file as it stands, "chat" a request in the target's chat template. The same machine gives the same prompts: files
are taken in the order of a hash of their names, packages are held out by a hash of theirs (one in eight), and no
prompt's first 80 characters come twice, so that a licence in forty packages counts once.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LEAST_TOKENS, MOST_TOKENS = 16, 224
LEAST_FILE_BYTES, MOST_FILE_BYTES = 400, 400_000


def digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def files() -> Iterator[tuple[str, Path]]:
    """(package, file) of the standard library and of everything installed, in a fixed order."""
    paths = sysconfig.get_paths()
    found: dict[Path, str] = {}
    for root in (Path(paths["stdlib"]), Path(paths["purelib"])):
        for path in root.rglob("*"):
            if path.suffix not in (".py", ".md", ".rst", ".txt", "") and path.name != "METADATA":
                continue
            parts = path.relative_to(root).parts
            if parts[0] in ("site-packages", "dist-packages") or "test" in parts or "tests" in parts:
                continue
            found[path] = re.split(r"[-.]", parts[0])[0].lower()
    for path in sorted(found, key=lambda one: digest("/".join(one.parts[-3:]))):
        yield found[path], path


def read(path: Path) -> str:
    try:
        if path.is_file() and LEAST_FILE_BYTES <= path.stat().st_size <= MOST_FILE_BYTES:
            return path.read_text()
    except (OSError, UnicodeDecodeError):
        pass
    return ""


def is_prose(text: str) -> bool:
    letters = sum(one.isalpha() or one in " ,.'" for one in text)
    return len(text) >= 160 and letters > 0.93 * len(text) and text.count(" ") > len(text) / 9 and "  " not in text


def paragraphs(text: str) -> Iterator[str]:
    for part in re.split(r"\n\s*\n", text):
        joined = " ".join(part.split())
        if is_prose(joined):
            yield joined


def from_code(source: str) -> Iterator[tuple[str, str, str]]:
    """(domain, form, text) of a Python file: its functions with a docstring, and the prose in docstrings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            continue
        doc = ast.get_docstring(node)
        if doc:
            for one in list(paragraphs(doc))[:2]:
                yield "prose", "continue", one
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("__") or len(node.body) < 2:
            continue
        start = node.lineno - 1
        end = node.body[0].end_lineno if doc else node.body[0].lineno - 1
        before = max(0, start - digest(node.name + source[:200]) % 16)
        yield "code", "continue", "\n".join(lines[before:end]) + "\n"
        if doc:
            wish = " ".join(doc.split("\n\n")[0].split())
            arguments = ", ".join(one.arg for one in node.args.args if one.arg not in ("self", "cls"))
            yield "code", "chat", f"Write a Python function `{node.name}({arguments})`. {wish}"


def from_text(text: str) -> Iterator[tuple[str, str, str]]:
    for one in paragraphs(text):
        yield "prose", "continue", one


ASKED = (
    "Explain this in simpler words: {}",
    "Summarize the following text. {}",
    "Write a short article that begins like this: {}",
    "What should a beginner know about this? {}",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=60000, help="prompts of each domain")
    parser.add_argument("--held-out", type=int, default=400, help="prompts of each domain")
    given = parser.parse_args()

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.target, local_files_only=True)
    wanted = {"train": given.train, "held-out": given.held_out}
    split_of: dict[str, str] = {}
    seen: set[tuple[str, str, str]] = set()
    counts: Counter[tuple[str, str]] = Counter()
    with given.out.open("w") as out:
        for package, path in files():
            split = "held-out" if digest(package) % 8 == 0 else "train"
            if all(counts[domain, split] >= wanted[split] for domain in ("code", "prose")):
                continue
            text = read(path)
            pieces = from_code(text) if path.suffix == ".py" else from_text(text)
            taken: Counter[tuple[str, str]] = Counter()
            for domain, form, piece in pieces:
                key = " ".join(piece.split())[:80]
                if split_of.setdefault(key, split) != split or (domain, form, key) in seen:
                    continue
                seen.add((domain, form, key))
                if taken[domain, form] >= 12 or counts[domain, split] >= wanted[split]:
                    continue
                if domain == "prose" and digest(piece) % 2:
                    form, piece = "chat", ASKED[digest(piece) // 2 % len(ASKED)].format(piece)
                if form == "chat":
                    message = [{"role": "user", "content": piece}]
                    piece = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
                elif domain == "prose":
                    words = piece.split()
                    piece = " ".join(words[: max(12, len(words) // 2)])
                ids = tokenizer(piece, add_special_tokens=False)["input_ids"]
                if not LEAST_TOKENS <= len(ids) <= MOST_TOKENS:
                    continue
                taken[domain, form] += 1
                counts[domain, split] += 1
                line = {"domain": domain, "split": split, "package": package, "form": form, "ids": ids}
                out.write(json.dumps(line) + "\n")
    for (domain, split), count in sorted(counts.items()):
        print(f"{split} {domain}: {count} prompts")


if __name__ == "__main__":
    main()
