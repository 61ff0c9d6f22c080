"""Whether the tiers are there, whatever their arguments say."""

from __future__ import annotations

from typing import Any


def test_hicache_fields_are_not_believed_when_hicache_is_off(engine: Any) -> None:
    bare = engine.metrics.replace("sglang:hicache_host_total_tokens", "sglang:other")
    seen = engine.values(engine.but(enable_hierarchical_cache=False), metrics=bare, log=None)
    assert seen["tiers.2.backend"] == "none"
    assert seen["tiers.3.backend"] == "none"
    assert not any(path.startswith("tiers.2.") and path != "tiers.2.backend" for path in seen)


def test_hicache_that_was_asked_for_and_is_not_attached_is_told(engine: Any) -> None:
    """The tree cache's own line outranks the argument."""
    log = engine.log.replace("hicache_attached=True", "hicache_attached=False")
    bare = engine.metrics.replace("sglang:hicache_host_total_tokens", "sglang:other")
    assert engine.values(log=log, metrics=bare)["tiers.2.backend"] == "none"


def test_the_older_spelling_of_the_tree_cache_line(engine: Any) -> None:
    bare = engine.metrics.replace("sglang:hicache_host_total_tokens", "sglang:other")
    log = engine.log.replace("hicache_attached=True", "hierarchical=True streaming_wrapped=False")
    assert "hierarchical=True" in engine.observe(log=log, metrics=bare)["tiers.2.backend"].proof


def test_the_size_of_the_host_tier_without_a_log(engine: Any) -> None:
    with_draft = engine.observe(log=None)["tiers.2.capacity_bytes"]
    assert with_draft.value is None
    assert "draft's pool" in with_draft.proof
    alone = engine.but(speculative_algorithm=None, speculative_draft_model_path=None)
    assert engine.observe(alone, log=None)["tiers.2.capacity_bytes"].value == 508_000_000_000
    assert engine.observe(engine.but(hicache_size=0), log=None)["tiers.2.capacity_bytes"].value is None


def test_the_storage_directory_from_the_engines_own_variables(engine: Any) -> None:
    states = [{"env_vars": {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": "/kv/x"}}]
    assert engine.observe(engine.but(internal_states=states), log=None)["tiers.3.directory"].value == "/kv/x"
    missing = engine.observe(log=None)["tiers.3.directory"]
    assert missing.value is None
    assert "dev_endpoints" in missing.proof
