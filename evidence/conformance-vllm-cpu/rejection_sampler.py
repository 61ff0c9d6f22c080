"""What vLLM's rejection sampler draws on a CPU for drafts without probabilities (ngram), against what it should.

ENGINE_PYTHON rejection_sampler.py     # a Python that has vLLM for CPUs

One position is looked at: the first of each request, drafted as token 3. By "hand" the logits are divided by the
temperature here, by "vLLM" in its ``apply_sampling_constraints``.
"""

from types import SimpleNamespace

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

LOGITS = torch.tensor([0.0, 1.0, 2.0, 3.0, -1.0, -2.0, -3.0, -4.0])
REQUESTS, DRAFTS, STEPS = 2, 4, 1500


def draw(temperature: float, by_hand: bool) -> torch.Tensor:
    """How often each token came out first."""
    counts = torch.zeros(len(LOGITS))
    ends = torch.tensor([DRAFTS * (number + 1) for number in range(REQUESTS)], dtype=torch.int32)
    for _ in range(STEPS):
        wanted = SimpleNamespace(
            temperature=torch.full((REQUESTS,), temperature),
            all_greedy=False,
            all_random=True,
            top_k=None,
            top_p=None,
            generators={},
        )
        logits = LOGITS.repeat(REQUESTS * DRAFTS, 1)
        if by_hand:
            logits /= temperature
        else:
            logits = rejection_sampler.apply_sampling_constraints(logits, ends, wanted)
        drafts = torch.full((REQUESTS * DRAFTS,), 3, dtype=torch.int32)
        bonus = torch.zeros((REQUESTS, 1), dtype=torch.int32)
        out = rejection_sampler.rejection_sample(
            drafts, [DRAFTS] * REQUESTS, DRAFTS, ends, None, logits.contiguous(), bonus, wanted
        )
        for row in out.tolist():
            counts[row[0]] += 1
    return counts


current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()
torch.manual_seed(0)
torch.set_num_threads(1)
print("| divided by | T | chi-square (7 df) | drawn | wanted |\n|---|---|---|---|---|")
for by_hand, temperature in ((True, 1.0), (True, 0.5), (False, 1.0), (False, 0.5)):
    counts, expected = draw(temperature, by_hand), torch.softmax(LOGITS / temperature, 0)
    chi = float(((counts - counts.sum() * expected) ** 2 / (counts.sum() * expected)).sum())
    shares = [" ".join(f"{share:.3f}" for share in values.tolist()) for values in (counts / counts.sum(), expected)]
    print(f"| {'hand' if by_hand else 'vLLM'} | {temperature} | {chi:,.0f} | {shares[0]} | {shares[1]} |")
