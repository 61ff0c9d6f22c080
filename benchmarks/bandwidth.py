"""What the memory's bandwidth allows a decoding engine, beside what was measured. Imported by run_configurations.py."""

from __future__ import annotations

from statistics import fmean
from typing import Any


def bandwidth_steps_s(plan: dict[str, Any], context_tokens: float, users: float = 1.0) -> float | None:
    """Decoding steps a second, when reading memory is all that takes time: bandwidth over the bytes of a step.

    Those are the weights that the tokens of ``users`` requests use (of the routed experts those that one of them is
    routed to, evenly and by chance; those of drafts that are verified are left out), the draft's, and the KV of
    ``context_tokens`` of each. None where the bandwidth is not known (a CPU)."""
    gpu = plan["share"]["gpu"] or {}
    if not gpu.get("hbm_bandwidth_bytes_s"):
        return None
    budget, moe = plan["budget"], plan["model"]["moe"] or {}
    step = budget["bytes_per_kv_token"] * context_tokens * users
    for line in budget["weights"]:
        share = 1.0
        if line["label"] == "routed experts":
            share -= (1 - moe["experts_per_token"] / moe["routed_experts"]) ** users
        # One row of the table is read for a token; tied weights are read again as the output layer, which is counted.
        step += line["bytes"] * share
    step += sum(line["bytes"] for line in budget["charges"] if line["label"] == "draft weights")
    return float(gpu["hbm_bandwidth_bytes_s"]) / step


def speed(plan: dict[str, Any], figures: list[dict[str, float]]) -> dict[str, float]:
    """Tokens/s/user as measured, as the bandwidth allows, and their ratio, in the mean over the repeats of a benchmark.

    Predicted are the steps a second for the prompts and the requests in flight that were measured (in the mean, spread
    evenly over the replicas), times the tokens that a step gave: the acceptance length, 1 without speculation. Nothing
    where no answer had two tokens; without the prediction where the bandwidth is not known.
    """
    names = ("user_tokens_s_p50", "in_flight", "prompt_tokens_mean", "output_tokens_mean")
    whole = [repeat for repeat in figures if all(name in repeat for name in names)]
    if not whole:
        return {}
    measured, in_flight, prompt, output = (fmean(repeat[name] for repeat in whole) for name in names)
    found = {"measured_user_tokens_s": measured}
    users = max(1.0, in_flight / max(1, len(plan["launches"])))
    steps_s = bandwidth_steps_s(plan, prompt + output / 2, users)
    if steps_s is not None:
        accepted = fmean(repeat.get("acceptance_length", 1.0) for repeat in whole)
        predicted = steps_s * accepted
        found |= {"requests_a_replica": users, "acceptance_length": accepted, "predicted_user_tokens_s": predicted}
        found["measured_over_predicted"] = measured / predicted
    return found
